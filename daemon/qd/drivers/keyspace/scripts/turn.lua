-- One turn of a worker with one job: ack the previous job, lease the next. What is used here without a definition comes from
-- the files that keyspace/base.py joins in front of it (PARTS), in this order: exceptions.lua, usual.lua, fresh.lua, pick.lua,
-- rarely.lua (which opens a function), reservation.lua, failed.lua, tied.lua, rarely_end.lua (which ends it), take.lua.
-- KEYS  see take.lua
-- ARGV  1 to 5 see take.lua   6 owner "<token>/<slot>"
--       7 mark base "<token>.<slot>.<turn>"   8 index of the queue of the job to ack, 0 for none   9 its payload
--       10 indexes of queues from which no job is taken (" 2 3 "), '' for none: returned as paused
-- Returns { acked (1, 0, -1 nothing to ack, -2 this worker holds another job), ms until the next delayed job or -1,
--           payloads buried unread ("1 id reason"), index of the queue or 0, payload, mark, start, length, text before,
--           paused queue index ... }
local owner, base, done, shut = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[10]
local paused, acks_at = {}, nil

-- The first write deletes, even if there is nothing to delete (an ack, a token): then a server at its maxmemory executes the
-- rest of the script, and workers can drain a full queue.
if done > 0 then
  acks_at = (done - 1) * EACH
  acked = acked or redis.pcall('ZREM', KEYS[acks_at + 2], ARGV[9])
  if type(acked) == 'table' then
    if not mistyped(acked) then return acked end
    acked = 0 -- the reservations are gone
  end
  -- A field that was replaced meanwhile stays.
  if acked == 0 and redis.pcall('HGET', KEYS[acks_at + 5], owner) ~= ARGV[9] then acks_at = nil end
end
-- One job at a time. If the worker holds another one, this call was late and the worker had abandoned it, or such a late call
-- reserved that job. Nothing is reserved, and the worker queries what it owns. An ack that found its job proves that it holds
-- no other.
for i = 0, acked == 1 and -1 or #KEYS - 1, EACH do
  local held = i ~= acks_at and redis.pcall('HGET', KEYS[i + 5], owner)
  if type(held) == 'table' and not mistyped(held) then return held end
  if type(held) == 'string' then
    if acks_at then redis.call('HDEL', KEYS[acks_at + 5], owner) end
    return {-2, -1, {}, 0, '', '', 0, 0, ''}
  end
end

acked = acked or -1
local next_at = 0 -- of the queue behind the one that is looked at

local function take()
  found = found or paused_or_suspects()
  while next_at < #KEYS do
    local i = next_at
    next_at = next_at + EACH
    if closed(i, shut, found) then
      paused[#paused + 1] = i / EACH + 1
    else
      local text, mark, start, length, before
      if found > 0 then text, mark, start, length, before = reserve(i, KEYS[i + 9], base, owner) end
      if not text then text, mark, start, length, before = reserve(i, KEYS[i + 1], base, owner) end
      if type(text) == 'table' then return text end
      if text then
        if acks_at == i then acks_at = nil end -- the new owner has replaced the old one
        return {acked, -1, malformed, i / EACH + 1, text, mark, start, length, before, unpack(paused)}
      end
      if not note_due(i) then redis.call('LTRIM', KEYS[i + 4], 1, 0) end -- the queue is empty: see usual.lua
    end
  end
  return {acked, wait_ms(), malformed, 0, '', '', 0, 0, '', unpack(paused)}
end

local ok, reply
repeat
  ok, reply = pcall(take)
  local skips = mistyped(reply)
  if skips then paused[#paused + 1] = next_at / EACH end
until not skips
if acks_at then redis.pcall('HDEL', KEYS[acks_at + 5], owner) end
return (ok or type(reply) == 'table') and reply or redis.error_reply(reply)
