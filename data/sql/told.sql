-- What was a tuner of this workload told, in order? Every search measurement with its proposal; the finalists' round apart.
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
SELECT p.key AS program, p.sketch, p.choices, p.run, p.round, p.parents, p.mutation, p.prediction,
       CASE WHEN m.trusted THEN coalesce(m.score, m.best_seconds) END AS seconds, m.error_kind
FROM judged m
JOIN (SELECT DISTINCT ON (workload, key) * FROM programs WHERE workload = $workload::VARCHAR
      ORDER BY workload, key, created) p
  ON p.workload = m.workload AND p.key = m.program
WHERE NOT m.confirmed
  AND m.workload = $workload::VARCHAR
  AND m.target = $target::VARCHAR
  AND ($device::VARCHAR IS NULL OR m.device = $device::VARCHAR)
ORDER BY m.created, m.round, m.program;
