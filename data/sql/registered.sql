-- Which models are tuned every night, and how are they? With their last run, their last night and what nights decided.
--   $registration VARCHAR  registrations.key; NULL: every one that is active
WITH last_run AS (
    SELECT model, threads, arg_max(started, started) AS started, arg_max(state, started) AS state,
           arg_max(latency_after, started) FILTER (latency_after IS NOT NULL) AS latency_seconds
    FROM unique_runs GROUP BY model, threads
),
decided AS (
    SELECT n.registration, count(*) FILTER (p.promoted) AS promotions, max(p.created) FILTER (p.promoted) AS last_promotion
    FROM promotions p JOIN nights n ON n.key = p.night
    GROUP BY n.registration
),
last_night AS (SELECT DISTINCT ON (registration) * FROM nights ORDER BY registration, finished DESC)
SELECT g.key AS registration, g.model, g.label, g.threads, g.batch, g.seq, g.dims, g.trials, g.budget_seconds,
       r.started AS last_run, r.state AS last_state, coalesce(n.latency_seconds, r.latency_seconds) AS latency_seconds,
       n.model_seconds, n.library, n.library_seconds, n.finished AS last_night, n.slower, n.faster, n.watched,
       coalesce(d.promotions, 0) AS promotions, d.last_promotion
FROM unique_registrations g
LEFT JOIN last_run r ON r.model = g.label AND r.threads = g.threads
LEFT JOIN last_night n ON n.registration = g.key
LEFT JOIN decided d ON d.registration = g.key
WHERE g.active AND ($registration::VARCHAR IS NULL OR g.key = $registration::VARCHAR)
ORDER BY g.key;
