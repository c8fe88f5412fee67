-- What was every measurement of a workload, samples and all, and which choices made its program? In the order of time.
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
WITH proposed AS (
    SELECT key, any_value(sketch) AS sketch, any_value(choices) AS choices
    FROM programs WHERE workload = $workload::VARCHAR GROUP BY key
)
SELECT m.program, p.sketch, s.holes, p.choices, m.seconds_warm, m.best_seconds, m.verified, m.error_kind, m.build_seconds,
       m.measure_seconds, m.confirmed, m.compiler, m.flags, m.device, m.created
FROM measurements m
JOIN proposed p ON p.key = m.program
LEFT JOIN unique_sketches s ON s.key = p.sketch
WHERE m.workload = $workload::VARCHAR
  AND m.target = $target::VARCHAR
  AND ($device::VARCHAR IS NULL OR m.device = $device::VARCHAR)
ORDER BY m.created, m.round, m.program;
