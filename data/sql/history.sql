-- What was measured of a workload, in the order of time, and what was the best until then?
--   $workload VARCHAR  workloads.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key; NULL: any machine
SELECT created, run, round, program, best_seconds, score, verified, confirmed, max_error, error_bound, error_kind,
       error_message, compiler, flags, peak_gflops, device,
       min(CASE WHEN trusted THEN best_seconds END)
           OVER (PARTITION BY device ORDER BY created, round, program ROWS UNBOUNDED PRECEDING) AS best_so_far_seconds
FROM judged
WHERE workload = $workload::VARCHAR
  AND target = $target::VARCHAR
  AND ($device::VARCHAR IS NULL OR device = $device::VARCHAR)
ORDER BY created, round, program;
