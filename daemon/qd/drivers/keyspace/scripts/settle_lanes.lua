-- A keeper answers jobs of lanes: of dead workers, and what a live one holds for too long.
-- KEYS ready, reserved, notify, owners, suspects, cancelled jobs
-- ARGV for each (at most 100): owner, payload as reserved, 'ack', 'head' or 'suspect', payload to put back
-- Returns for each 1, or 0 if the owner has it no longer: then nothing is done. At the head of ready they keep their order.
local owners, replies = {}, {}
for at = 1, #ARGV, 4 do owners[#owners + 1] = ARGV[at] end
local now_owned = redis.call('HMGET', KEYS[4], unpack(owners))
local gone, fields, heads, suspects, tokens, cancelled = {}, {}, {}, {}, {}, {}
local marks = redis.pcall('HKEYS', KEYS[6])
for k = #owners, 1, -1 do
  local owner, member, what, text = unpack(ARGV, 4 * k - 3, 4 * k)
  replies[k] = 0
  if now_owned[k] == member then
    fields[#fields + 1] = owner
    if redis.call('ZSCORE', KEYS[2], member) then
      local mark
      if what ~= 'ack' then text, mark = stopped(marks, owner, member, text) end
      if what == 'suspect' and not mark then suspects[#suspects + 1] = text
      elseif what ~= 'ack' then heads[#heads + 1] = text end
      if what ~= 'ack' then tokens[#tokens + 1] = '1' end
      gone[#gone + 1], cancelled[#cancelled + 1], replies[k] = member, mark, 1
    end
  end
end
redis.call('HDEL', KEYS[4], '') -- the first write deletes: see turn.lua
redis.call('ZREM', KEYS[2], '')
if #tokens > 0 then redis.call('RPUSH', KEYS[3], unpack(tokens)) end
for k = #suspects, 1, -1 do redis.call('RPUSH', KEYS[5], suspects[k]) end
if #heads > 0 then
  local step = redis.pcall('LPUSH', KEYS[1], unpack(heads))
  if type(step) == 'table' then
    if #suspects > 0 then redis.call('LTRIM', KEYS[5], 0, -1 - #suspects) end
    return step
  end
end
if #gone > 0 then redis.call('ZREM', KEYS[2], unpack(gone)) end
if #fields > 0 then redis.call('HDEL', KEYS[4], unpack(fields)) end
if #cancelled > 0 then redis.call('HDEL', KEYS[6], unpack(cancelled)) end
return replies
