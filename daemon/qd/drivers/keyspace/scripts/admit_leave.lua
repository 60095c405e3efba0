-- Give up a turn: see admit.lua.
-- KEYS turns, due   ARGV owner
-- Returns 1, or 0 if the owner had no turn.
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
