-- Where was a workload measured? By its name or the beginning of its key, a row for each target and device, the latest first.
--   $workload VARCHAR  workloads.name, or the beginning of workloads.key
WITH named AS (
    SELECT * FROM unique_workloads WHERE name = $workload::VARCHAR OR starts_with(key, $workload::VARCHAR)
),
measured AS (
    SELECT workload, target, device, any_value(threads) AS threads, count(*) FILTER (NOT confirmed) AS trials,
           count(*) FILTER (NOT good) AS failed, arg_max(far_bytes, created) AS far_bytes, max(created) AS last
    FROM checked c SEMI JOIN named n ON n.key = c.workload
    GROUP BY workload, target, device
)
SELECT n.key AS workload, n.name, n.weight, n.flops, n.bytes, n.dag_text, m.target, m.device, m.threads, m.trials, m.failed,
       m.far_bytes, m.last
FROM named n
JOIN measured m ON m.workload = n.key
ORDER BY m.last DESC, n.key, m.target, m.device;
