-- Which program is the best of a workload? One row per workload: what was decided last. That is the winner of the last
-- finalists' round, in which the winners of earlier ones took part, or what a night has promoted or kept since then.
-- Without either it is the fastest of the search, and one that was not verified never comes.
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $target   VARCHAR  records of another target never count
--   $device   VARCHAR  devices.key; NULL: any machine, which is a warm start and no measurement of this one
WITH best AS MATERIALIZED (
    FROM winners($target::VARCHAR, $device::VARCHAR, $workload::VARCHAR)
    QUALIFY row_number() OVER (PARTITION BY workload ORDER BY NOT decided, final_seconds NULLS LAST, confirmed DESC, seconds,
                                            program, device) = 1
),
coded AS MATERIALIZED (
    SELECT DISTINCT ON (program, target) s.*
    FROM sources s SEMI JOIN best b ON b.program = s.program AND b.target = s.target
    ORDER BY program, target, created DESC
),
elsewhere AS MATERIALIZED (SELECT workload, program FROM best ANTI JOIN (FROM coded WHERE choices IS NOT NULL) USING (program)),
proposed AS (
    SELECT program AS key, sketch, choices FROM coded WHERE choices IS NOT NULL
    UNION ALL
    SELECT p.key, any_value(p.sketch) AS sketch, any_value(p.choices) AS choices
    FROM programs p SEMI JOIN elsewhere b ON b.program = p.key
    WHERE p.target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR p.workload = $workload::VARCHAR)
      AND EXISTS (FROM elsewhere)
    GROUP BY p.key
)
SELECT r.workload, r.program, p.sketch, s.text AS sketch_text, p.choices,
       coalesce(r.final_seconds, r.seconds) AS seconds, r.confirmed, r.measured, r.fastest_seconds, r.target, r.device,
       r.run, r.round, c.language, c.entry, c.text AS source_text
FROM best r
JOIN proposed p ON p.key = r.program
LEFT JOIN unique_sketches s ON s.key = p.sketch
LEFT JOIN coded c ON c.program = r.program AND c.target = r.target
ORDER BY r.workload;
