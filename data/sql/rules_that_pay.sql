-- Which sketch rules and which mutations produced improvements? An improvement is a trial that was faster than every trial
-- of its workload before it in the same run; its gain is the old best time over the new.
--   $run    VARCHAR  runs.key; NULL: the newest eight runs
--   $target VARCHAR  NULL: every target
WITH chosen AS MATERIALIZED (
    SELECT key AS run FROM unique_runs WHERE $run::VARCHAR IS NULL OR key = $run::VARCHAR
    ORDER BY started DESC, key LIMIT 8
),
ordered AS (
    SELECT run, program, good, seconds,
           min(seconds) OVER (PARTITION BY run, workload, target, device ORDER BY workload_trial
                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM trials
    WHERE run IN (FROM chosen)
      AND ($run::VARCHAR IS NULL OR run = $run::VARCHAR)
      AND ($target::VARCHAR IS NULL OR target = $target::VARCHAR)
),
proposals AS (
    SELECT key, run, arg_min(sketch, created) AS sketch, arg_min((mutation,), created)[1] AS mutation
    FROM programs
    WHERE run IN (FROM chosen)
      AND ($run::VARCHAR IS NULL OR run = $run::VARCHAR)
    GROUP BY key, run
),
tried AS (
    SELECT o.good, coalesce(o.seconds < o.before, false) AS improved, o.before / o.seconds AS gain, p.mutation, s.rules
    FROM ordered o
    JOIN proposals p ON p.key = o.program AND p.run = o.run
    LEFT JOIN unique_sketches s ON s.key = p.sketch
),
causes AS (
    SELECT 'rule' AS kind, unnest(list_distinct(rules)) AS name, good, improved, gain FROM tried
    UNION ALL
    SELECT 'mutation', unnest(list_distinct(string_split(coalesce(mutation, 'sampled'), ' '))), good, improved, gain FROM tried
)
SELECT kind, name,
       count(*)                                AS tried,
       count(*) FILTER (NOT good)              AS failed,
       count(*) FILTER (improved)              AS improved,
       count(*) FILTER (improved) / count(*)   AS improved_share,
       max(gain) FILTER (improved)             AS best_gain,
       exp(avg(ln(gain)) FILTER (improved))    AS mean_gain
FROM causes
GROUP BY kind, name
ORDER BY kind DESC, improved_share DESC, tried DESC, name;
