-- Put a reserved job back: by its worker after an attempt, by a keeper after its worker has died.
-- KEYS ready, reserved, delayed, notify, owners, those of effects
-- ARGV owner, payload as reserved, payload as it goes back, delay in seconds, 1 for the head of ready, effects
-- Returns 1, or 0 when the lease was lost: then nothing is added.
-- What may be refused comes first (a key of a wrong type, a command that an ACL forbids): a script that stops after it has
-- added would add again at each try. And the first write takes something away: see turn.lua.
redis.call('ZREM', KEYS[2], '')
local owner, member, text, delay = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local mine = redis.call('HGET', KEYS[5], owner) == member
if not redis.call('ZSCORE', KEYS[2], member) then
  if mine then redis.call('HDEL', KEYS[5], owner) end
  return 0
end
effects(TRY, 6, 6)
if delay > 0 then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
  if delay < 1 then redis.call('RPUSH', KEYS[4], '1') end
  redis.call('ZADD', KEYS[3], string.format('%.3f', math.ceil((now + delay) * 1000) / 1000), text)
else
  redis.call('RPUSH', KEYS[4], '1')
  redis.call(ARGV[5] == '1' and 'LPUSH' or 'RPUSH', KEYS[1], text)
end
effects(DO, 6, 6)
redis.call('ZREM', KEYS[2], member)
if mine then redis.call('HDEL', KEYS[5], owner) end
return 1
