-- Which program stands for a workload, by the last decision of a night? Later finalists' rounds are asked about elsewhere.
--   $target VARCHAR
--   $device VARCHAR  devices.key
WITH stands AS MATERIALIZED (
    SELECT workload, arg_max(program, created) AS program, max(created) AS since
    FROM promotions
    WHERE target = $target::VARCHAR AND device = $device::VARCHAR
    GROUP BY workload
)
SELECT s.workload, s.program, any_value(p.sketch) AS sketch, any_value(p.choices) AS choices, s.since
FROM stands s
JOIN programs p ON p.workload = s.workload AND p.key = s.program
WHERE p.target = $target::VARCHAR
GROUP BY s.workload, s.program, s.since
ORDER BY s.workload;
