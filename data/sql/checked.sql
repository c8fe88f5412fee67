-- What did a program take when nights measured it, round by round, since it last changed? With what it was built and ran in.
-- The rounds of the night that found the change say what has been normal since.
--   $workload VARCHAR  workloads.key
--   $program  VARCHAR  programs.key
--   $target   VARCHAR
--   $device   VARCHAR  devices.key
WITH changed AS (
    SELECT arg_max(night, created) AS night, max(created) AS created
    FROM shifts
    WHERE workload = $workload::VARCHAR AND program = $program::VARCHAR
      AND target = $target::VARCHAR AND device = $device::VARCHAR
)
SELECT c.night, c.role, c.look, c.round, c.seconds, c.peak_gflops, c.environment, e.compiler, e.flags, e.code, e.kernel,
       e.microcode, e.libraries, e.probe, c.created
FROM checks c
JOIN unique_environments e ON e.key = c.environment
CROSS JOIN changed x
WHERE c.workload = $workload::VARCHAR AND c.program = $program::VARCHAR
  AND c.target = $target::VARCHAR AND c.device = $device::VARCHAR
  AND (x.created IS NULL OR c.night = x.night OR c.created > x.created)
ORDER BY c.created, c.look, c.round, c.role;
