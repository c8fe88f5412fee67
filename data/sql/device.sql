-- What can a device do, as it was probed last? Sizes and rates of one core.
--   $device VARCHAR  devices.key
SELECT key AS device, isa, vector_bytes, cores, peak_gflops, memory, compiler, measured
FROM unique_devices
WHERE key = $device::VARCHAR;
