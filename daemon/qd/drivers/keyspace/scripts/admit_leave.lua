-- Give a turn away: see admit.lua.   KEYS turns, due   ARGV owner   Returns 1, or 0 when there was none.
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
