-- Which program must the next batch of a workload beat? The one with the lowest drift-corrected time, confirmed or not;
-- `find` shows it.
--   $workload VARCHAR  workloads.key; NULL: every workload, a row each
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
WITH found AS (FROM good_rows($target::VARCHAR, $device::VARCHAR, $workload::VARCHAR)),
wrong AS MATERIALIZED (
    SELECT DISTINCT device, program FROM measurements WHERE error_kind = 'wrong' AND target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
      AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
),
few AS (  -- a guess at the best: without those that were wrong it may be empty, and then nothing is ruled out below
    SELECT workload, device, unnest(arg_min(program, score, 16)) AS program FROM found GROUP BY workload, device
),
worst AS (
    SELECT workload, device, program, max(score) AS bound
    FROM found SEMI JOIN (FROM few ANTI JOIN wrong USING (device, program)) USING (workload, device, program)
    GROUP BY workload, device, program
),
bounded AS MATERIALIZED (SELECT workload, device, min(bound) AS bound FROM worst GROUP BY workload, device),
below AS (  -- a median lies between the least and the greatest score: nothing else can have a lower one
    SELECT DISTINCT f.workload, f.device, f.program FROM found f LEFT JOIN bounded b USING (workload, device)
    WHERE f.score <= coalesce(b.bound, 'infinity')
),
near AS MATERIALIZED (FROM below ANTI JOIN wrong USING (device, program)),
best AS MATERIALIZED (
    SELECT workload, device, program, median(score) AS score, min(best_seconds) AS fastest_seconds,
           bool_or(confirmed) AS confirmed, arg_max(run, created) AS run, arg_max(round, created) AS round
    FROM found SEMI JOIN near USING (workload, device, program)
    GROUP BY workload, device, program
    QUALIFY row_number() OVER (PARTITION BY workload ORDER BY median(score), program, device) = 1
)
SELECT workload, program, score, fastest_seconds, confirmed, device, run, round FROM best ORDER BY workload;
