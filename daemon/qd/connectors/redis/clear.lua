-- Delete what waits in a queue, never what runs.
-- KEYS ready, delayed, notify
-- Returns how many payloads went. The memory is freed beside the work: a long queue holds nobody up.
local count = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2])
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return count
