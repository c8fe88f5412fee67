-- How fast was each program of a workload? In the search, drift-corrected, and in the last finalists' round, where it ran
-- side by side with the winner. Programs that failed, or were ever wrong, do not come.
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
WITH mine AS (
    SELECT * FROM judged
    WHERE trusted
      AND workload = $workload::VARCHAR
      AND target = $target::VARCHAR
      AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
),
last AS (SELECT arg_max(run, created) AS run FROM mine WHERE confirmed),
times AS (
    SELECT program,
           median(coalesce(score, best_seconds)) FILTER (NOT confirmed)                         AS search_seconds,
           median(best_seconds) FILTER (confirmed AND run = (SELECT run FROM last))             AS confirmed_seconds
    FROM mine GROUP BY program
)
SELECT t.program, p.sketch, p.choices, t.search_seconds, t.confirmed_seconds
FROM times t
JOIN unique_programs p ON p.key = t.program AND p.workload = $workload::VARCHAR
ORDER BY t.confirmed_seconds NULLS LAST, t.search_seconds, t.program;
