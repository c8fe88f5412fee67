-- What did a run change? The winner of each workload's finalists' round beside the winner of the round before. Times of two
-- days are not compared: `gain` is what the former winner took in this same round over what the new one took.
--   $run VARCHAR  runs.key
WITH final AS (
    SELECT workload, target, device, program, median(best_seconds) AS seconds, min(created) AS created
    FROM judged
    WHERE confirmed AND trusted AND run = $run::VARCHAR
    GROUP BY workload, target, device, program
),
won AS (
    SELECT workload, target, device, arg_min(program, (seconds, program)) AS program, min(seconds) AS seconds,
           min(created) AS created
    FROM final GROUP BY workload, target, device
),
earlier AS (
    SELECT j.workload, j.target, j.device, j.run, j.program, median(j.best_seconds) AS seconds, max(j.created) AS created
    FROM judged j JOIN won w ON w.workload = j.workload AND w.target = j.target AND w.device = j.device
    WHERE j.confirmed AND j.trusted AND j.run <> $run::VARCHAR AND j.created < w.created
    GROUP BY j.workload, j.target, j.device, j.run, j.program
),
before AS (
    SELECT workload, target, device, run, arg_min(program, (seconds, program)) AS program, min(seconds) AS seconds
    FROM earlier
    GROUP BY workload, target, device, run
    QUALIFY row_number() OVER (PARTITION BY workload, target, device ORDER BY max(created) DESC, run) = 1
)
SELECT w.workload, u.name, b.run AS before_run, b.program AS before_program, b.seconds AS before_seconds,
       n.seconds AS again_seconds, w.program, w.seconds, n.seconds / w.seconds AS gain
FROM won w
LEFT JOIN unique_workloads u ON u.key = w.workload
LEFT JOIN before b ON b.workload = w.workload AND b.target = w.target AND b.device = w.device
LEFT JOIN final n ON n.workload = w.workload AND n.target = w.target AND n.device = w.device AND n.program = b.program
ORDER BY gain DESC NULLS LAST, w.workload;
