-- Delete a finished job.
-- KEYS reserved, owners, those of effects   ARGV owner, payload, effects (see effects.lua)
-- Returns 1, or 0 if the lease was lost: then no effect is done.
redis.call('HDEL', KEYS[2], '') -- the first write deletes: see turn.lua
local mine = redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2]
local held = redis.call('ZSCORE', KEYS[1], ARGV[2])
if held then
  effects(TRY, 3, 3)
  effects(DO, 3, 3)
  redis.call('ZREM', KEYS[1], ARGV[2])
end
if mine then redis.call('HDEL', KEYS[2], ARGV[1]) end
return held and 1 or 0
