-- Move a reserved job into the failed store, in one step, and keep the store within its limits.
-- KEYS reserved, owners, failed, failed_at, those of effects
-- ARGV owner, payload as reserved, id, record (one line of JSON), raw payload, maximum of records ('' for any number),
--      seconds to keep them, maximum of their bytes, effects
-- Returns 1, or 0 if the lease was lost: then nothing is added.
redis.call('HDEL', KEYS[2], '') -- the first write deletes: see turn.lua
local mine = redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2]
local held = redis.call('ZSCORE', KEYS[1], ARGV[2])
if held then
  local time = redis.call('TIME')
  effects(TRY, 5, 9)
  bury(KEYS[3], KEYS[4], ARGV[3], ARGV[4], ARGV[5], time[1] + time[2] / 1000000, ARGV[6], ARGV[7], ARGV[8])
  effects(DO, 5, 9)
  redis.call('ZREM', KEYS[1], ARGV[2])
end
if mine then redis.call('HDEL', KEYS[2], ARGV[1]) end
return held and 1 or 0
