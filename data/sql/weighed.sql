-- How fast was a model on earlier nights beside a library? The latest night first; those without a comparison do not come.
--   $registration VARCHAR  registrations.key
--   $device       VARCHAR  devices.key
SELECT key AS night, finished, model_seconds, library, library_seconds, library_seconds / model_seconds AS ratio
FROM nights
WHERE registration = $registration::VARCHAR AND device = $device::VARCHAR
  AND model_seconds IS NOT NULL AND library_seconds IS NOT NULL
ORDER BY finished DESC, key;
