-- Which programs of a workload were measured already, and must not be proposed again? Failures count.
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
SELECT DISTINCT r.program, p.sketch, p.choices
FROM results r
LEFT JOIN unique_programs p ON p.workload = r.workload AND p.key = r.program AND p.workload = $workload::VARCHAR
WHERE r.workload = $workload::VARCHAR
  AND r.target = $target::VARCHAR
  AND ($device::VARCHAR IS NULL OR r.device = $device::VARCHAR)
ORDER BY r.program;
