-- How good was the cost model, round by round? Rank correlation and recall are those of the hold-out, as recorded: inside
-- a batch, predictions and measurements agree on little but noise.
--   $run VARCHAR  runs.key
SELECT workload, round, model_rank_correlation, model_recall, train_seconds,
       sum(measured) OVER (PARTITION BY workload ORDER BY round ROWS UNBOUNDED PRECEDING)::BIGINT - measured AS trained_on
FROM rounds
WHERE run = $run::VARCHAR
ORDER BY workload, round;
