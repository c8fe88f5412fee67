-- What can a cost model learn from? One row per program: its choices, and a label that is its throughput relative to the
-- best of its workload (1 for the best, 0 for a program that failed or was wrong).
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine (each machine has a best of its own)
SELECT r.workload, r.device, r.program, p.sketch, p.choices,
       r.score                                                                                AS seconds,
       coalesce(min(r.score) OVER (PARTITION BY r.workload, r.device) / r.score, 0.0)         AS label,
       NOT r.trusted                                                                          AS failed,
       r.run, r.round
FROM results r
JOIN unique_programs p ON p.workload = r.workload AND p.key = r.program
WHERE r.target = $target::VARCHAR
  AND ($workload::VARCHAR IS NULL OR r.workload = $workload::VARCHAR AND p.workload = $workload::VARCHAR)
  AND ($device::VARCHAR IS NULL OR r.device = $device::VARCHAR)
ORDER BY r.workload, r.device, r.last_measured, r.program;
