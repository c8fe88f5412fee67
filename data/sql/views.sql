-- One view per table, over the parts that count now: the variable <table>_parts is their list, set before each question.
-- (A list and not a pattern: while parts are being merged a pattern would see rows twice. OR REPLACE: when a part vanishes
-- half way, the views are made again.)

CREATE OR REPLACE VIEW workloads     AS FROM read_parquet(getvariable('workloads_parts'),     union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW sketches      AS FROM read_parquet(getvariable('sketches_parts'),      union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW programs      AS FROM read_parquet(getvariable('programs_parts'),      union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW measurements  AS FROM read_parquet(getvariable('measurements_parts'),  union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW rounds        AS FROM read_parquet(getvariable('rounds_parts'),        union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW runs          AS FROM read_parquet(getvariable('runs_parts'),          union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW devices       AS FROM read_parquet(getvariable('devices_parts'),       union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW sources       AS FROM read_parquet(getvariable('sources_parts'),       union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW environments  AS FROM read_parquet(getvariable('environments_parts'),  union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW registrations AS FROM read_parquet(getvariable('registrations_parts'), union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW checks        AS FROM read_parquet(getvariable('checks_parts'),        union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW shifts        AS FROM read_parquet(getvariable('shifts_parts'),        union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW promotions    AS FROM read_parquet(getvariable('promotions_parts'),    union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW nights        AS FROM read_parquet(getvariable('nights_parts'),        union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW imports       AS FROM read_parquet(getvariable('imports_parts'),       union_by_name = true, hive_partitioning = false);

-- One row per key. Several runs record the same workload or sketch; a run adds a row when it starts and when it ends.
CREATE OR REPLACE VIEW unique_workloads     AS SELECT DISTINCT ON (key) * FROM workloads         ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_sketches      AS SELECT DISTINCT ON (key) * FROM sketches          ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_devices       AS SELECT DISTINCT ON (key) * FROM devices           ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_runs          AS SELECT DISTINCT ON (key) * FROM runs              ORDER BY key, created DESC, finished DESC NULLS LAST;
CREATE OR REPLACE VIEW unique_sources       AS SELECT DISTINCT ON (program, target) * FROM sources ORDER BY program, target, created DESC;
CREATE OR REPLACE VIEW unique_environments  AS SELECT DISTINCT ON (key) * FROM environments      ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_registrations AS SELECT DISTINCT ON (key) * FROM registrations     ORDER BY key, created DESC;

-- The key is a hash of sketch and choices, so every row of a key has the same ones.
CREATE OR REPLACE VIEW unique_programs AS
SELECT workload, key, any_value(sketch) AS sketch, any_value(choices) AS choices FROM programs GROUP BY workload, key;

-- Programs that were ever wrong on a target and device.
CREATE OR REPLACE VIEW wrong_programs AS
SELECT DISTINCT workload, target, device, program, true AS wrong FROM measurements WHERE error_kind = 'wrong';

-- A measurement is good when the program was compared with the oracle and has a time. Whoever asks for that alone asks
-- here: it costs nothing beside the reading.
CREATE OR REPLACE VIEW checked AS
SELECT *, coalesce(verified AND error_kind IS NULL AND best_seconds IS NOT NULL, false) AS good FROM measurements;

-- It is trusted when, moreover, the program was never wrong on that target and device: one that races is wrong only
-- sometimes. Nothing else can be the best.
CREATE OR REPLACE VIEW judged AS
SELECT m.*, good AND w.wrong IS NULL AS trusted
FROM checked m
LEFT JOIN wrong_programs w USING (workload, target, device, program);

-- One row per program, target and device; several measurements merge by their median, whoever made them. `seconds` is
-- the confirmed time where there is one, else the drift-corrected one.
CREATE OR REPLACE VIEW results AS
SELECT workload, target, device, program,
       count(*)                                                         AS measured,
       bool_or(trusted)                                                 AS trusted,
       bool_or(trusted AND confirmed)                                   AS confirmed,
       coalesce(median(best_seconds) FILTER (trusted AND confirmed),
                median(coalesce(score, best_seconds)) FILTER (trusted)) AS seconds,
       median(coalesce(score, best_seconds)) FILTER (trusted)           AS score,
       min(best_seconds) FILTER (trusted)                               AS fastest_seconds,
       arg_max(run, created)                                            AS run,
       arg_max(round, created)                                          AS round,
       max(created)                                                     AS last_measured
FROM judged
GROUP BY workload, target, device, program;

-- The measurements of the search itself, numbered in the order they were made; the finalists' round repeats some of them.
CREATE OR REPLACE VIEW trials AS
SELECT *,
       row_number() OVER (PARTITION BY run ORDER BY round, created, workload, program) AS trial,
       row_number() OVER (PARTITION BY run, workload ORDER BY round, created, program) AS workload_trial,
       CASE WHEN trusted THEN coalesce(score, best_seconds) END                        AS seconds
FROM judged
WHERE NOT confirmed;

-- What follows are questions that several files ask, as table macros: t, d and w are a target, a device and a workload, NULL
-- where all are meant. A view would judge every row of the store before a filter could say which ones are wanted.

CREATE OR REPLACE MACRO good_rows(t, d, w) AS TABLE
SELECT workload, target, device, program, run, round, best_seconds, coalesce(score, best_seconds) AS score, confirmed, created
FROM checked
WHERE good AND (t IS NULL OR target = t) AND (d IS NULL OR device = d) AND (w IS NULL OR workload = w);

-- Which program stands, at each place? What was decided last: the winner of the last finals, or what a night has promoted or
-- kept since; without either the one with the lowest score. `final_seconds`: of the last finals; the rest as in `results`.
CREATE OR REPLACE MACRO winners(t, d, w) AS TABLE
WITH wrong AS MATERIALIZED (
    SELECT DISTINCT target, device, program FROM measurements
    WHERE error_kind = 'wrong' AND (t IS NULL OR target = t) AND (d IS NULL OR device = d) AND (w IS NULL OR workload = w)
),
finals AS MATERIALIZED (
    SELECT g.* FROM good_rows(t, d, w) g ANTI JOIN wrong x USING (target, device, program) WHERE confirmed
),
last AS MATERIALIZED (
    SELECT workload, target, device, arg_max(run, created) AS run, max(created) AS created
    FROM finals GROUP BY workload, target, device
),
final AS MATERIALIZED (
    SELECT f.workload, f.target, f.device, f.program, median(f.best_seconds) AS final_seconds
    FROM finals f JOIN last l USING (workload, target, device, run)
    GROUP BY f.workload, f.target, f.device, f.program
),
decided AS (
    SELECT p.workload, p.target, p.device, arg_max(p.program, p.created) AS program
    FROM promotions p LEFT JOIN last l USING (workload, target, device)
    WHERE (t IS NULL OR target = t) AND (d IS NULL OR device = d) AND (w IS NULL OR workload = w)
      AND (l.created IS NULL OR l.created <= p.created)
    GROUP BY p.workload, p.target, p.device
),
unfinished AS MATERIALIZED (
    SELECT DISTINCT workload, target, device FROM good_rows(t, d, w) ANTI JOIN last USING (workload, target, device)
),
scored AS (
    SELECT g.workload, g.target, g.device, g.program, median(g.score) AS score
    FROM good_rows(t, d, w) g SEMI JOIN unfinished USING (workload, target, device)
    ANTI JOIN wrong USING (target, device, program)
    GROUP BY g.workload, g.target, g.device, g.program
),
candidates AS MATERIALIZED (
    SELECT workload, target, device, program, true AS decided FROM decided ANTI JOIN wrong USING (target, device, program)
    UNION ALL
    (SELECT DISTINCT ON (workload, target, device) workload, target, device, program, false FROM final
     ORDER BY workload, target, device, final_seconds, program)
    UNION ALL
    SELECT workload, target, device, arg_min(program, (score, program)), false FROM scored GROUP BY workload, target, device
),
looked_at AS (
    SELECT workload, target, device, program,
           count(*)                                                                  AS measured,
           bool_or(good AND confirmed)                                               AS confirmed,
           coalesce(median(best_seconds) FILTER (good AND confirmed),
                    median(coalesce(score, best_seconds)) FILTER (good))             AS seconds,
           min(best_seconds) FILTER (good)                                           AS fastest_seconds,
           median(peak_gflops)                                                       AS peak_gflops,
           arg_max(run, created)                                                     AS run,
           arg_max(round, created)                                                   AS round
    FROM checked SEMI JOIN candidates USING (program)  -- of one workload; its other places go in the join below
    WHERE (t IS NULL OR target = t) AND (d IS NULL OR device = d) AND (w IS NULL OR workload = w)
    GROUP BY workload, target, device, program
    HAVING bool_or(good)
)
SELECT c.workload, c.target, c.device, c.program, c.decided, f.final_seconds, a.* EXCLUDE (workload, target, device, program)
FROM candidates c
JOIN looked_at a USING (workload, target, device, program)
LEFT JOIN final f USING (workload, target, device, program)
QUALIFY row_number() OVER (PARTITION BY c.workload, c.target, c.device
                           ORDER BY NOT c.decided, f.final_seconds NULLS LAST, a.confirmed DESC, a.seconds, c.program) = 1;
