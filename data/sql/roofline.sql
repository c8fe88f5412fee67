-- How far is each workload's best program from what the machine can do? Attained GFLOP/s beside the peak that was measured
-- with it, and the roof: the lower of that peak and the bandwidth of memory times the operations per byte. One row per
-- workload and device, the largest distance to the roof first.
--   $target   VARCHAR
--   $workload VARCHAR  workloads.key; NULL: every workload
--   $device   VARCHAR  devices.key; NULL: any machine
WITH best AS (
    SELECT *, coalesce(final_seconds, seconds) AS best_seconds
    FROM winners($target::VARCHAR, $device::VARCHAR, $workload::VARCHAR)
),
placed AS (
    SELECT b.workload, w.name, b.device, b.program, b.best_seconds AS seconds, w.flops, w.bytes, w.flops / w.bytes AS flops_per_byte,
           w.flops / b.best_seconds / 1e9 AS gflops, coalesce(b.peak_gflops, d.peak_gflops) AS peak_gflops,
           list_filter(d.memory, lambda level: lower(level.level) IN ('dram', 'memory'))[1].gb_per_second AS gb_per_second
    FROM best b
    JOIN unique_workloads w ON w.key = b.workload
    LEFT JOIN unique_devices d ON d.key = b.device
)
SELECT *, least(peak_gflops, gb_per_second * flops_per_byte)          AS roof_gflops,
       gflops / peak_gflops                                           AS peak_share,
       gflops / least(peak_gflops, gb_per_second * flops_per_byte)    AS roof_share,
       CASE WHEN gb_per_second * flops_per_byte < peak_gflops THEN 'memory' ELSE 'arithmetic' END AS bound
FROM placed
ORDER BY roof_share, workload, device;
