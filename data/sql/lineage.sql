-- What was a program bred from? The program first, then its first parent, and so on to one that was sampled; at most 64.
--   $program  VARCHAR  programs.key
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
WITH RECURSIVE proposed AS MATERIALIZED (
    SELECT DISTINCT ON (key) key AS program, sketch, choices, parents, mutation, run, round, created
    FROM programs
    WHERE workload = $workload::VARCHAR
    ORDER BY key, created
),
line AS (
    SELECT 0 AS step, * FROM proposed WHERE program = $program::VARCHAR
    UNION ALL
    SELECT l.step + 1, p.* FROM line l JOIN proposed p ON p.program = l.parents[1] AND p.created < l.created
    WHERE l.step < 63
),
times AS (
    SELECT program, median(coalesce(score, best_seconds)) AS seconds
    FROM judged
    WHERE trusted AND NOT confirmed
      AND workload = $workload::VARCHAR
      AND target = $target::VARCHAR
      AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
    GROUP BY program
)
SELECT l.step, l.program, l.sketch, l.choices, l.mutation, l.run, l.round, t.seconds
FROM line l
LEFT JOIN times t ON t.program = l.program
ORDER BY l.step;
