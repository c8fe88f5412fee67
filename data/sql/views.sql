-- One view per table, over the parts that count now: the variable <table>_parts is their list, set before each question.
-- (A list and not a pattern: while parts are being merged a pattern would see rows twice. OR REPLACE: when a part vanishes
-- half way, the views are made again.)

CREATE OR REPLACE VIEW workloads    AS FROM read_parquet(getvariable('workloads_parts'),    union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW sketches     AS FROM read_parquet(getvariable('sketches_parts'),     union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW programs     AS FROM read_parquet(getvariable('programs_parts'),     union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW measurements AS FROM read_parquet(getvariable('measurements_parts'), union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW rounds       AS FROM read_parquet(getvariable('rounds_parts'),       union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW runs         AS FROM read_parquet(getvariable('runs_parts'),         union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW devices      AS FROM read_parquet(getvariable('devices_parts'),      union_by_name = true, hive_partitioning = false);
CREATE OR REPLACE VIEW sources      AS FROM read_parquet(getvariable('sources_parts'),      union_by_name = true, hive_partitioning = false);

-- One row per key. Several runs record the same workload or sketch; a run adds a row when it starts and when it ends.
CREATE OR REPLACE VIEW unique_workloads AS SELECT DISTINCT ON (key) * FROM workloads ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_sketches  AS SELECT DISTINCT ON (key) * FROM sketches  ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_devices   AS SELECT DISTINCT ON (key) * FROM devices   ORDER BY key, created DESC;
CREATE OR REPLACE VIEW unique_runs      AS SELECT DISTINCT ON (key) * FROM runs      ORDER BY key, created DESC, finished DESC NULLS LAST;
CREATE OR REPLACE VIEW unique_sources   AS SELECT DISTINCT ON (program, target) * FROM sources ORDER BY program, target, created DESC;

-- The key is a hash of sketch and choices, so every row of a key has the same ones.
CREATE OR REPLACE VIEW unique_programs AS
SELECT workload, key, any_value(sketch) AS sketch, any_value(choices) AS choices FROM programs GROUP BY workload, key;

-- A measurement is good when the program was compared with the oracle and has a time. It is trusted when, moreover, the
-- program was never wrong on that target and device: one that races is wrong only sometimes. Nothing else can be the best.
CREATE OR REPLACE VIEW judged AS
WITH wrong AS (
    SELECT DISTINCT workload, target, device, program, true AS wrong FROM measurements WHERE error_kind = 'wrong'
)
SELECT m.*,
       coalesce(m.verified AND m.error_kind IS NULL AND m.best_seconds IS NOT NULL, false) AS good,
       good AND w.wrong IS NULL                                                            AS trusted
FROM measurements m
LEFT JOIN wrong w USING (workload, target, device, program);

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
