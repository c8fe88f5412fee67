-- How fast did other tuners say that they were, beside us? One row per workload, tool and target of theirs; the times are of
-- other machines and nobody verified them here. `ratio` above 1: ours takes less. Unmapped tasks come last, without ours.
--   $target VARCHAR  of ours; NULL: whichever was fastest
WITH theirs AS (
    SELECT workload, tool, target, task, arguments, any_value(flops) AS flops, count(*) AS records,
           count(*) FILTER (error_kind IS NOT NULL) AS failed, min(best_seconds) AS seconds, any_value(unmapped) AS unmapped
    FROM (SELECT DISTINCT ON (key) * FROM imports ORDER BY key, created)
    GROUP BY workload, tool, target, task, arguments
),
mapped AS MATERIALIZED (SELECT DISTINCT workload FROM imports WHERE workload IS NOT NULL),
ours AS (
    SELECT workload, arg_min(target, best_seconds) AS target, min(best_seconds) AS seconds
    FROM checked SEMI JOIN mapped USING (workload) ANTI JOIN wrong_programs USING (workload, target, device, program)
    WHERE good AND ($target::VARCHAR IS NULL OR target = $target::VARCHAR)
    GROUP BY workload
)
SELECT t.workload, w.name, t.tool, t.task, t.arguments, t.target AS their_target, t.records, t.failed,
       t.seconds AS their_seconds, t.flops / t.seconds / 1e9 AS their_gflops,
       o.target AS our_target, o.seconds AS our_seconds, t.seconds / o.seconds AS ratio, t.unmapped
FROM theirs t
LEFT JOIN ours o ON o.workload = t.workload
LEFT JOIN unique_workloads w ON w.key = t.workload
ORDER BY t.workload NULLS LAST, t.seconds, t.tool, t.target, t.task, t.arguments;
