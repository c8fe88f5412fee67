-- Which program must the next batch of a workload beat? The one with the lowest drift-corrected time, confirmed or not.
--   $workload VARCHAR  workloads.key; NULL: every workload, a row each
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
WITH best AS MATERIALIZED (
    SELECT * FROM leaders
    WHERE target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
      AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
    QUALIFY row_number() OVER (PARTITION BY workload ORDER BY score, program, device) = 1
),
proposed AS (
    SELECT p.workload, p.key, any_value(p.sketch) AS sketch, any_value(p.choices) AS choices
    FROM programs p SEMI JOIN best b ON b.workload = p.workload AND b.program = p.key
    WHERE $workload::VARCHAR IS NULL OR p.workload = $workload::VARCHAR
    GROUP BY p.workload, p.key
)
SELECT r.workload, r.program, p.sketch, p.choices, r.score, r.fastest_seconds, r.confirmed, r.device, r.run, r.round
FROM best r
JOIN proposed p ON p.workload = r.workload AND p.key = r.program
ORDER BY r.workload;
