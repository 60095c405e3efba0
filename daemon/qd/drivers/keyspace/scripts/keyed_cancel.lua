-- Cancel the job that waits under a name.
-- KEYS delayed, keyed   ARGV name
-- Returns 1, or 0 if none waits.
local old = entry_of(KEYS[2], ARGV[1])
if not old then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1]) -- from now on no worker runs the job: one that is ready already is dropped when it is taken
redis.call('ZREM', KEYS[1], old.payload)
return 1
