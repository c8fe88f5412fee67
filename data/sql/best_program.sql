-- Which program is the best of a workload? One row per workload: what was decided last. That is the winner of the last
-- finalists' round, in which the winners of earlier ones took part, or what a night has promoted or kept since then.
-- Without either it is the fastest of the search, and one that was not verified never comes.
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $target   VARCHAR  records of another target never count
--   $device   VARCHAR  devices.key; NULL: any machine, which is a warm start and no measurement of this one
WITH finals AS (
    SELECT workload, target, device, run, program, median(best_seconds) AS seconds, max(created) AS created
    FROM judged
    WHERE confirmed AND trusted
      AND target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
      AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
    GROUP BY workload, target, device, run, program
),
last AS (
    SELECT workload, target, device, program, seconds, max(created) OVER (PARTITION BY workload, target, device) AS created
    FROM finals
    QUALIFY run = last_value(run) OVER (PARTITION BY workload, target, device ORDER BY created
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
),
decided AS (
    SELECT workload, target, device, arg_max(program, created) AS program
    FROM promotions p
    WHERE target = $target::VARCHAR
      AND NOT EXISTS (SELECT 1 FROM last l WHERE l.workload = p.workload AND l.target = p.target AND l.device = p.device
                                             AND l.created > p.created)
    GROUP BY workload, target, device
),
best AS MATERIALIZED (
    SELECT r.*, l.seconds AS final_seconds
    FROM leaders r
    LEFT JOIN last l ON l.workload = r.workload AND l.target = r.target AND l.device = r.device AND l.program = r.program
    LEFT JOIN decided d ON d.workload = r.workload AND d.target = r.target AND d.device = r.device AND d.program = r.program
    WHERE r.target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR r.workload = $workload::VARCHAR)
      AND ($device::VARCHAR IS NULL OR r.device = $device::VARCHAR)
    QUALIFY row_number() OVER (PARTITION BY r.workload ORDER BY d.program IS NULL, l.seconds NULLS LAST, r.confirmed DESC,
                                            r.seconds, r.program, r.device) = 1
),
proposed AS (
    SELECT p.workload, p.key, any_value(p.sketch) AS sketch, any_value(p.choices) AS choices
    FROM programs p SEMI JOIN best b ON b.workload = p.workload AND b.program = p.key
    WHERE $workload::VARCHAR IS NULL OR p.workload = $workload::VARCHAR
    GROUP BY p.workload, p.key
),
coded AS (
    SELECT DISTINCT ON (program, target) s.*
    FROM sources s SEMI JOIN best b ON b.program = s.program AND b.target = s.target
    ORDER BY program, target, created DESC
)
SELECT r.workload, r.program, p.sketch, s.text AS sketch_text, p.choices,
       coalesce(r.final_seconds, r.seconds) AS seconds, r.confirmed, r.measured, r.fastest_seconds, r.target, r.device,
       r.run, r.round, c.language, c.entry, c.text AS source_text
FROM best r
JOIN proposed p ON p.workload = r.workload AND p.key = r.program
LEFT JOIN unique_sketches s ON s.key = p.sketch
LEFT JOIN coded c ON c.program = r.program AND c.target = r.target
ORDER BY r.workload;
