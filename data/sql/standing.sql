-- Which program stands for a workload, by the last decision of a night? Later finalists' rounds are asked about elsewhere.
--   $target VARCHAR
--   $device VARCHAR  devices.key
SELECT p.workload, arg_max(p.program, p.created) AS program, arg_max(u.sketch, p.created) AS sketch,
       arg_max(u.choices, p.created) AS choices, max(p.created) AS since
FROM promotions p
JOIN unique_programs u ON u.workload = p.workload AND u.key = p.program
WHERE p.target = $target::VARCHAR AND p.device = $device::VARCHAR
GROUP BY p.workload
ORDER BY p.workload;
