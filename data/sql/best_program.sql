-- Which program is the best of a workload? One row per workload; a confirmed program comes before any other, and one
-- that was not verified never comes.
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $target   VARCHAR  records of another target never count
--   $device   VARCHAR  devices.key; NULL: any machine, which is a warm start and no measurement of this one
SELECT r.workload, r.program, p.sketch, s.text AS sketch_text, p.choices,
       r.seconds, r.confirmed, r.measured, r.fastest_seconds, r.target, r.device, r.run, r.round,
       c.language, c.entry, c.text AS source_text
FROM results r
JOIN unique_programs p ON p.workload = r.workload AND p.key = r.program
LEFT JOIN unique_sketches s ON s.key = p.sketch
LEFT JOIN unique_sources c ON c.program = r.program AND c.target = r.target
WHERE r.trusted
  AND r.target = $target::VARCHAR
  AND ($workload::VARCHAR IS NULL OR r.workload = $workload::VARCHAR AND p.workload = $workload::VARCHAR)
  AND ($device::VARCHAR IS NULL OR r.device = $device::VARCHAR)
QUALIFY row_number() OVER (PARTITION BY r.workload ORDER BY r.confirmed DESC, r.seconds, r.program, r.device) = 1
ORDER BY r.workload;
