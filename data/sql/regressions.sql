-- Which programs became slower, or faster, from one confirmed measurement to the next, and what had changed between?
-- Confirmed ones alone, and what nights measured again: the least of a search is biased by luck. One row per program and
-- change, the worst first; "time" in `changed` means that nothing we record was different. No noise is taken out here: a
-- night's own verdict is a row of `shifts`.
--   $target   VARCHAR
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $ratio    DOUBLE   shown from this ratio on, either way; NULL: 1.05
WITH wrong AS MATERIALIZED (
    SELECT DISTINCT device, program FROM measurements
    WHERE error_kind = 'wrong' AND target = $target::VARCHAR AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
),
single AS MATERIALIZED (
    SELECT workload, program, run, device, NULL AS environment, compiler, flags, best_seconds AS seconds, created
    FROM checked ANTI JOIN wrong USING (device, program)
    WHERE confirmed AND good
      AND target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
    UNION ALL
    SELECT workload, program, night, device, environment, NULL, NULL, seconds, created
    FROM checks
    WHERE target = $target::VARCHAR
      AND ($workload::VARCHAR IS NULL OR workload = $workload::VARCHAR)
),
more AS (  -- most programs were confirmed once
    SELECT workload, program FROM single GROUP BY workload, program
    HAVING min(run) <> max(run) OR min(device) <> max(device)
),
known AS (
    SELECT s.* REPLACE (coalesce(s.environment, r.environment) AS environment)
    FROM single s SEMI JOIN more USING (workload, program) LEFT JOIN unique_runs r ON r.key = s.run
),
repeated AS (
    SELECT s.workload, s.program, s.run, s.device, s.environment, any_value(coalesce(s.compiler, e.compiler)) AS compiler,
           any_value(coalesce(s.flags, e.flags)) AS flags, any_value(e.code) AS code, any_value(e.kernel) AS kernel,
           any_value(e.microcode) AS microcode, any_value(e.libraries) AS libraries,
           median(s.seconds) AS seconds, count(*) AS samples, min(s.created) AS created
    FROM known s LEFT JOIN unique_environments e ON e.key = s.environment
    GROUP BY s.workload, s.program, s.run, s.device, s.environment
),
compared AS (
    SELECT *, lag(run) OVER earlier AS before_run, lag(seconds) OVER earlier AS before_seconds,
           lag(device) OVER earlier AS before_device, lag(compiler) OVER earlier AS before_compiler,
           lag(flags) OVER earlier AS before_flags, lag(code) OVER earlier AS before_code,
           lag(kernel) OVER earlier AS before_kernel, lag(microcode) OVER earlier AS before_microcode,
           lag(libraries) OVER earlier AS before_libraries
    FROM repeated
    WINDOW earlier AS (PARTITION BY workload, program ORDER BY created, run, device)
)
SELECT c.workload, w.name, c.program, c.before_run, c.run, c.before_seconds, c.seconds,
       c.seconds / c.before_seconds AS ratio, c.samples,
       coalesce(nullif(concat_ws(', ', CASE WHEN c.device <> c.before_device THEN 'device' END,
                                       CASE WHEN c.compiler <> c.before_compiler THEN 'compiler' END,
                                       CASE WHEN c.flags <> c.before_flags THEN 'flags' END,
                                       CASE WHEN c.code <> c.before_code THEN 'code' END,
                                       CASE WHEN c.kernel <> c.before_kernel THEN 'kernel' END,
                                       CASE WHEN c.microcode <> c.before_microcode THEN 'microcode' END,
                                       CASE WHEN c.libraries <> c.before_libraries THEN 'libraries' END), ''), 'time') AS changed,
       c.before_device, c.device, c.before_compiler, c.compiler, c.created
FROM compared c
LEFT JOIN unique_workloads w ON w.key = c.workload
WHERE greatest(c.seconds / c.before_seconds, c.before_seconds / c.seconds) >= coalesce($ratio::DOUBLE, 1.05)
ORDER BY ratio DESC, c.workload, c.program, c.created;
