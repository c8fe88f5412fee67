-- Which k programs of a workload are the fastest, with everything needed to build them again?
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
--   $k        BIGINT   rows at most; NULL: all
SELECT row_number() OVER (ORDER BY r.confirmed DESC, r.seconds, r.program, r.device) AS rank,
       r.program, p.sketch, s.text AS sketch_text, p.choices,
       r.seconds, r.confirmed, r.measured, r.fastest_seconds, r.device, r.run, r.round,
       c.language, c.entry, c.text AS source_text
FROM results r
JOIN unique_programs p ON p.workload = r.workload AND p.key = r.program
LEFT JOIN unique_sketches s ON s.key = p.sketch
LEFT JOIN unique_sources c ON c.program = r.program AND c.target = r.target
WHERE r.trusted
  AND r.workload = $workload::VARCHAR
  AND p.workload = $workload::VARCHAR
  AND r.target = $target::VARCHAR
  AND ($device::VARCHAR IS NULL OR r.device = $device::VARCHAR)
ORDER BY rank
LIMIT $k::BIGINT;
