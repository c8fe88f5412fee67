-- Which program must the next batch of a workload beat? The one with the lowest drift-corrected time, confirmed or not.
--   $workload VARCHAR  workloads.key; NULL: every workload, a row each
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
SELECT r.workload, r.program, p.sketch, p.choices, r.score, r.fastest_seconds, r.confirmed, r.device, r.run, r.round
FROM results r
JOIN unique_programs p ON p.workload = r.workload AND p.key = r.program
WHERE r.trusted
  AND r.target = $target::VARCHAR
  AND ($workload::VARCHAR IS NULL OR r.workload = $workload::VARCHAR AND p.workload = $workload::VARCHAR)
  AND ($device::VARCHAR IS NULL OR r.device = $device::VARCHAR)
QUALIFY row_number() OVER (PARTITION BY r.workload ORDER BY r.score, r.program, r.device) = 1
ORDER BY r.workload;
