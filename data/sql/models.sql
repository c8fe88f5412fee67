-- Which models were tuned, for which target and on which device? The latest first; `runs` are the keys of the runs, the
-- oldest first. A run that measured nothing counts for the device of the model's last one that did.
WITH placed AS (
    SELECT run, arg_max(device, created) AS device FROM measurements GROUP BY run
),
of_runs AS (
    SELECT r.key, r.model, r.target, r.threads, r.started,
           coalesce(p.device, arg_max(p.device, r.started) OVER (PARTITION BY r.model, r.target)) AS device
    FROM unique_runs r LEFT JOIN placed p ON p.run = r.key
)
SELECT model, target, threads, device, list(key ORDER BY started, key) AS runs, max(started) AS started
FROM of_runs
GROUP BY model, target, threads, device
ORDER BY started DESC, model, target, device;
