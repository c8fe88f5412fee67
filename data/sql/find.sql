-- What has a key that begins so? Workloads and programs, each with its best result; workloads first.
--   $key VARCHAR  the beginning of a key
WITH found AS MATERIALIZED (
    SELECT 'workload' AS kind, key, key AS workload, NULL AS sketch, NULL AS choices
    FROM unique_workloads WHERE starts_with(key, $key::VARCHAR)
    UNION ALL
    SELECT 'program', key, workload, any_value(sketch), any_value(choices)
    FROM programs WHERE starts_with(key, $key::VARCHAR) GROUP BY key, workload
),
best AS (
    SELECT workload, program, arg_min(target, seconds) AS target, min(seconds) AS seconds, bool_or(confirmed) AS confirmed
    FROM results r SEMI JOIN found f ON f.workload = r.workload AND f.key = r.program
    WHERE starts_with(program, $key::VARCHAR)
    GROUP BY workload, program
),
failures AS (
    SELECT workload, program, any_value(error_kind) AS error_kind, any_value(error_message) AS error_message,
           any_value(target) AS target
    FROM measurements WHERE error_kind IS NOT NULL AND starts_with(program, $key::VARCHAR) GROUP BY workload, program
),
coded AS (
    SELECT program, arg_max(text, created) AS source_text FROM sources WHERE starts_with(program, $key::VARCHAR) GROUP BY program
)
SELECT f.kind, f.key, f.workload, w.name, w.dag_text, w.flops, w.space_size, f.sketch, s.text AS sketch_text, s.rules, f.choices,
       coalesce(b.target, e.target) AS target, b.seconds, b.confirmed, e.error_kind, e.error_message,
       c.source_text
FROM found f
JOIN unique_workloads w ON w.key = f.workload
LEFT JOIN unique_sketches s ON s.key = f.sketch
LEFT JOIN best b ON b.workload = f.workload AND b.program = f.key
LEFT JOIN failures e ON e.workload = f.workload AND e.program = f.key
LEFT JOIN coded c ON c.program = f.key
ORDER BY f.kind DESC, b.seconds, f.key;
