-- What went wrong in a run, how often, and how does one example read?
--   $run VARCHAR  runs.key; NULL: every run
WITH chosen AS (
    SELECT * FROM checked WHERE $run::VARCHAR IS NULL OR run = $run::VARCHAR
)
SELECT coalesce(error_kind, 'unverified')               AS kind,
       count(*)                                         AS count,
       count(*) / (SELECT count(*) FROM chosen)         AS share,
       count(DISTINCT program)                          AS programs,
       count(DISTINCT workload)                         AS workloads,
       arg_min(error_message, created)                  AS first_message
FROM chosen
WHERE NOT good
GROUP BY kind
ORDER BY count DESC, kind;
