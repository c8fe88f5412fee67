-- What do the sketches of a workload say? The texts that `training_set` and `measured_keys` name by key.
--   $workload VARCHAR  workloads.key; NULL: every workload
SELECT s.workload, s.key AS sketch, s.text, s.rules, s.holes, w.dag_text
FROM unique_sketches s
LEFT JOIN unique_workloads w ON w.key = s.workload
WHERE $workload::VARCHAR IS NULL OR s.workload = $workload::VARCHAR
ORDER BY s.workload, s.key;
