-- How did a run get better, trial by trial? Failed trials count as trials and have no time.
--   $run VARCHAR  runs.key
SELECT trial, workload_trial, workload, round, program, seconds, error_kind,
       min(seconds) OVER (PARTITION BY workload ORDER BY workload_trial)            AS best_seconds,
       date_diff('microsecond', min(created) OVER (), created) / 1e6                AS elapsed_seconds
FROM trials
WHERE run = $run::VARCHAR
ORDER BY trial;
