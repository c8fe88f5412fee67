-- Which workloads does a model consist of, and what was tried of each? Those that its last run recorded, in its order.
--   $model  VARCHAR
--   $target VARCHAR
--   $device VARCHAR  devices.key; NULL: any machine
WITH recorded AS (
    SELECT DISTINCT ON (key) * FROM workloads
    WHERE model = $model::VARCHAR
      AND created >= coalesce((SELECT max(started) FROM unique_runs
                               WHERE model = $model::VARCHAR AND target = $target::VARCHAR), '-infinity'::TIMESTAMPTZ)
    ORDER BY key, created DESC
),
tried AS (
    SELECT workload, count(*) FILTER (NOT confirmed) AS trials, count(*) FILTER (NOT good) AS failed,
           arg_max(far_bytes, created) AS far_bytes
    FROM checked
    WHERE target = $target::VARCHAR
      AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
    GROUP BY workload
)
SELECT r.key AS workload, r.name, r.weight, r.flops, r.bytes, r.space_size, r.dag_text, r.inputs, r.outputs, r.origin,
       coalesce(t.trials, 0) AS trials, coalesce(t.failed, 0) AS failed, t.far_bytes
FROM recorded r
LEFT JOIN tried t ON t.workload = r.key
ORDER BY r.created, r.key;
