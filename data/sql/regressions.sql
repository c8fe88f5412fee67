-- Which programs became slower, or faster, from one confirmed measurement to the next, and what had changed between?
-- Confirmed ones alone: the least of a search is biased by luck. One row per program and change, the worst first;
-- "time" in `changed` means that nothing we record was different.
--   $target   VARCHAR
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $ratio    DOUBLE   shown from this ratio on, either way; NULL: 1.05
WITH repeated AS (
    SELECT workload, program, run, device, any_value(compiler) AS compiler, any_value(flags) AS flags,
           median(best_seconds) AS seconds, count(*) AS samples, min(created) AS created
    FROM judged
    WHERE confirmed AND trusted
      AND target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
    GROUP BY workload, program, run, device
),
compared AS (
    SELECT *, lag(run) OVER earlier AS before_run, lag(seconds) OVER earlier AS before_seconds,
           lag(device) OVER earlier AS before_device, lag(compiler) OVER earlier AS before_compiler,
           lag(flags) OVER earlier AS before_flags
    FROM repeated
    WINDOW earlier AS (PARTITION BY workload, program ORDER BY created, run, device)
)
SELECT c.workload, w.name, c.program, c.before_run, c.run, c.before_seconds, c.seconds,
       c.seconds / c.before_seconds AS ratio, c.samples,
       coalesce(nullif(concat_ws(', ', CASE WHEN c.device <> c.before_device THEN 'device' END,
                                       CASE WHEN c.compiler <> c.before_compiler THEN 'compiler' END,
                                       CASE WHEN c.flags <> c.before_flags THEN 'flags' END), ''), 'time') AS changed,
       c.before_device, c.device, c.before_compiler, c.compiler, c.created
FROM compared c
LEFT JOIN unique_workloads w ON w.key = c.workload
WHERE greatest(c.seconds / c.before_seconds, c.before_seconds / c.seconds) >= coalesce($ratio::DOUBLE, 1.05)
ORDER BY ratio DESC, c.workload, c.program, c.created;
