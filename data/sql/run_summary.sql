-- How did a run go? One row per run, the newest first.
--   $run VARCHAR  runs.key; NULL: every run
WITH counted AS (
    SELECT run, count(*) AS measured, count(*) FILTER (NOT good) AS failed,
           count(*) FILTER (confirmed) AS confirmed, count(DISTINCT workload) AS workloads
    FROM checked WHERE $run::VARCHAR IS NULL OR run = $run::VARCHAR GROUP BY run
),
spent AS (
    SELECT run, max(round) + 1 AS rounds, sum(search_seconds) AS search_seconds, sum(train_seconds) AS train_seconds,
           sum(build_seconds) AS build_seconds, sum(measure_seconds) AS measure_seconds
    FROM rounds WHERE $run::VARCHAR IS NULL OR run = $run::VARCHAR GROUP BY run
)
SELECT r.key AS run, r.model, r.target, r.threads, r.seed, r.state, r.started, r.finished,
       date_diff('microsecond', r.started, r.finished) / 1e6 AS wall_seconds,
       r.trials, coalesce(c.measured, 0) AS measured, coalesce(c.failed, 0) AS failed,
       coalesce(c.confirmed, 0) AS confirmed, coalesce(c.workloads, 0) AS workloads, coalesce(s.rounds, 0) AS rounds,
       s.search_seconds, s.train_seconds, s.build_seconds, s.measure_seconds,
       r.latency_before, r.latency_after, r.latency_before / r.latency_after AS speedup, r.version, r.settings
FROM unique_runs r
LEFT JOIN counted c ON c.run = r.key
LEFT JOIN spent s ON s.run = r.key
WHERE $run::VARCHAR IS NULL OR r.key = $run::VARCHAR
ORDER BY r.started DESC, r.key;
