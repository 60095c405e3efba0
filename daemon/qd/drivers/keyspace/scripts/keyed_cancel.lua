-- Cancel what waits under a name.   KEYS delayed, keyed   ARGV name   Returns 1, or 0 when nothing waits
local old = entry_of(KEYS[2], ARGV[1])
if not old then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1]) -- from now on nobody runs it, wherever it stands
redis.call('ZREM', KEYS[1], old.payload)
return 1
