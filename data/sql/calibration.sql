-- How right was the cost model about the programs it proposed, round by round? The prediction of each program against
-- its throughput relative to the best of its workload in that run (0: failed), which is what the model learns. Inside one
-- batch the programs are alike, so the rank correlation is low; what should shrink from round to round is the error.
--   $run      VARCHAR  runs.key
--   $workload VARCHAR  NULL: every workload of the run
WITH proposed AS (
    SELECT workload, round, key AS program, min(prediction) AS prediction
    FROM programs
    WHERE run = $run::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
    GROUP BY ALL
),
labelled AS (
    SELECT p.workload, p.round, p.prediction, t.seconds,
           coalesce(min(t.seconds) OVER (PARTITION BY p.workload) / t.seconds, 0.0) AS label
    FROM proposed p
    JOIN trials t ON t.workload = p.workload AND t.round = p.round AND t.program = p.program
    WHERE t.run = $run::VARCHAR
),
ranked AS (
    SELECT *, rank() OVER (PARTITION BY workload, round ORDER BY prediction) AS predicted_rank,
              rank() OVER (PARTITION BY workload, round ORDER BY label)      AS measured_rank
    FROM labelled
    WHERE prediction IS NOT NULL
)
SELECT workload, round,
       count(*)                          AS programs,
       count(*) FILTER (seconds IS NULL) AS failed,
       avg(prediction)                   AS predicted,
       avg(label)                        AS measured,
       avg(prediction - label)           AS bias,
       avg(abs(prediction - label))      AS mean_absolute_error,
       CASE WHEN stddev_pop(predicted_rank) > 0 AND stddev_pop(measured_rank) > 0
            THEN corr(predicted_rank, measured_rank) END AS rank_correlation
FROM ranked
GROUP BY workload, round
ORDER BY workload, round;
