-- Where did the time of a run go? One row per workload, the dearest first.
--   $run VARCHAR  runs.key
WITH spent AS (
    SELECT workload, count(*) AS rounds, sum(proposed)::BIGINT AS proposed, sum(measured)::BIGINT AS measured,
           sum(failed)::BIGINT AS failed, sum(search_seconds) AS search_seconds, sum(train_seconds) AS train_seconds,
           sum(build_seconds) AS build_seconds, sum(measure_seconds) AS measure_seconds,
           sum(search_seconds + train_seconds + build_seconds + measure_seconds) AS total_seconds
    FROM rounds
    WHERE run = $run::VARCHAR
    GROUP BY workload
)
SELECT s.workload, w.name, s.rounds, s.proposed, s.measured, s.failed,
       s.search_seconds, s.train_seconds, s.build_seconds, s.measure_seconds, s.total_seconds,
       s.total_seconds / sum(s.total_seconds) OVER ()   AS share,
       s.total_seconds / nullif(s.measured, 0)          AS seconds_per_trial
FROM spent s
LEFT JOIN unique_workloads w ON w.key = s.workload
ORDER BY s.total_seconds DESC, s.workload;
