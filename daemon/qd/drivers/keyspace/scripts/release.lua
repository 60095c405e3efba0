-- Put a reserved job back: its worker calls this after an attempt, a keeper after the worker has died.
-- KEYS ready, reserved, delayed, notify, owners, cancelled jobs, those of effects
-- ARGV owner, payload as reserved, payload to put back, delay in seconds, 1 for the head of ready, effects
-- Returns 1, or 0 if the lease was lost: then nothing is added.
-- Commands that may be refused come first (a key of a wrong type, an ACL): a script that stops after it has added would add
-- again at each try. And the first write deletes: see turn.lua.
redis.call('ZREM', KEYS[2], '')
local owner, member, text, delay = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local mine = redis.call('HGET', KEYS[5], owner) == member
if not redis.call('ZSCORE', KEYS[2], member) then
  if mine then redis.call('HDEL', KEYS[5], owner) end
  return 0
end
-- Cancelled while it ran: it goes to the tail of ready, with a mark that makes the next worker drop it.
local cancelled
for _, mark in ipairs(redis.pcall('HKEYS', KEYS[6])) do
  local _, at = string.find(text, '"rsv":"' .. mark .. '.', 1, true)
  if at and string.gsub(mark, '%.(%d+)%.%d+$', '/%1') == owner then
    text, delay = string.sub(text, 1, at) .. 'c' .. string.sub(text, string.find(text, '"', at, true), -1), 0
    cancelled = mark
  end
end
effects(TRY, 7, 6)
if delay > 0 then
  if delay < 1 then redis.call('RPUSH', KEYS[4], '1') end
  redis.call('ZADD', KEYS[3], due_after(clock(), delay), text)
else
  redis.call('RPUSH', KEYS[4], '1')
  redis.call(ARGV[5] == '1' and 'LPUSH' or 'RPUSH', KEYS[1], text)
end
effects(DO, 7, 6)
redis.call('ZREM', KEYS[2], member)
if cancelled then redis.call('HDEL', KEYS[6], cancelled) end
if mine then redis.call('HDEL', KEYS[5], owner) end
return 1
