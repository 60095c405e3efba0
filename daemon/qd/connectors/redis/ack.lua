-- Forget a finished job.
-- KEYS reserved, owners   ARGV owner, payload
-- Returns 1, or 0 when the lease was lost before.
if redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[2], ARGV[1]) end
return redis.call('ZREM', KEYS[1], ARGV[2])
