-- Put a reserved job back whose delivery stays at the broker, which will deliver it again with the same id. The changed
-- payload, which the delivery cannot carry, is kept here.
-- KEYS reserved, owners, cancelled jobs, kept, taken, holding, those of effects
-- ARGV owner, payload as reserved, payload to put back, seconds to keep it, effects (see effects.lua)
-- Returns 0 if the lease was lost, else the id and the handle of the delivery ('' if it has none).
redis.call('ZREM', KEYS[1], '') -- the first write deletes: see turn.lua
local owner, member, text = ARGV[1], ARGV[2], ARGV[3]
local mine = redis.call('HGET', KEYS[2], owner) == member
if not redis.call('ZSCORE', KEYS[1], member) then
  if mine then redis.call('HDEL', KEYS[2], owner) end
  return 0
end
-- Cancelled while it ran: marked so that the next worker drops it, as in release.lua.
local cancelled
for _, mark in ipairs(redis.pcall('HKEYS', KEYS[3])) do
  local _, at = string.find(text, '"rsv":"' .. mark .. '.', 1, true)
  if at and string.gsub(mark, '%.(%d+)%.%d+$', '/%1') == owner then
    text = string.sub(text, 1, at) .. 'c' .. string.sub(text, string.find(text, '"', at, true), -1)
    cancelled = mark
  end
end
effects(TRY, 7, 5)
redis.call('SET', KEYS[4], text, 'EX', ARGV[4])
effects(DO, 7, 5)
local delivery = redis.call('HGET', KEYS[6], owner) or ''
redis.call('HDEL', KEYS[5], string.match(delivery, '^%S*'))
redis.call('HDEL', KEYS[6], owner)
redis.call('ZREM', KEYS[1], member)
if cancelled then redis.call('HDEL', KEYS[3], cancelled) end
if mine then redis.call('HDEL', KEYS[2], owner) end
return delivery
