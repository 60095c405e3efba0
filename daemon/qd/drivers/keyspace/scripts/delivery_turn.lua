-- One turn of a worker whose jobs a broker keeps: ack the previous job, lease the new delivery.
-- KEYS  thirteen per queue, in order of priority: ready, delayed, reserved, owners, taken, holding, ended, paused, failed,
--       failed_at, elsewhere, resent, sending
-- ARGV  1 owner "<token>/<slot>"   2 lease in seconds   3 maximum of records in the failed store, '' for any number
--       4 seconds it keeps them   5 maximum of their bytes   6 maximum of bytes of a payload, 0 for any
--       7 prefix of the names of locks   8 mark base "<token>.<slot>.<turn>"
--       9 index of the queue of the job to ack, 0 for none   10 its payload
--       11 the id of its delivery if the broker has deleted that already, else ''
--       12 index of the queue of the new delivery, 0 for none   13 its id   14 its handle   15 its payload
--       16 digest of that payload   17... index of a queue and an id: deliveries to forget, since the broker has deleted them
-- Returns { acked (1, 0, -1 nothing to ack, -2 this worker holds another job), id and handle of the acked delivery or '',
--           what became of the new delivery (see below), ms until the next delayed job in an outbox or -1,
--           indexes of queues with something to send in their outbox ("1 3 "), payload (of a malformed one: the reason),
--           mark (the id of its record), start, length, text before,
--           paused queue index ... }
-- A queue that is left to PHP workers around a due time (`elsewhere`) is returned as paused, too. What became of the delivery:
--   leased      the worker runs its job
--   held        another worker has it: release it at the broker
--   back        its FIFO queue is paused: release it at the broker unchanged
--   parked      its queue is paused: the job is in the outbox. Delete the delivery
--   ended       its job was answered before: delete it
--   dropped     its job was cancelled, moved or sent twice: delete it
--   malformed   its payload is in the failed store, unread: delete it
--   none        there was no delivery
-- Add before remove: wherever this script stops, every payload is still stored somewhere.

local owner, most, locks, base, done, at = ARGV[1], tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[12])
local READY, DELAYED, RESERVED, OWNERS, TAKEN, HOLDING, ENDED, PAUSED, FAILED, FAILED_AT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local ELSEWHERE, RESENT, SENDING, EACH = 11, 12, 13, 13
local BEFORE, BEHIND = 0.5, 4 -- seconds before and after the time at which PHP workers must find the job
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local acked, delivery, free, paused, held_back, due, outbox = -1, '', nil, {}, {}, nil, ''

local function key(i, which) return KEYS[(i - 1) * EACH + which] end

-- The first write deletes: see turn.lua.
if done > 0 then
  acked = redis.call('ZREM', key(done, RESERVED), ARGV[10])
  if acked == 1 or redis.call('HGET', key(done, OWNERS), owner) == ARGV[10] then
    if acked == 1 and ARGV[11] ~= '' then
      delivery = ARGV[11]
      redis.call('HDEL', key(done, TAKEN), delivery)
    elseif acked == 1 then
      delivery = note_answered(key(done, TAKEN), key(done, HOLDING), key(done, ENDED), owner)
    end
    free = done
  end
else
  redis.call('HDEL', key(1, OWNERS), '')
end
for k = 17, #ARGV, 2 do redis.call('ZREM', key(tonumber(ARGV[k]), ENDED), ARGV[k + 1]) end
for i = 1, #KEYS / EACH do
  if i ~= free and redis.call('HGET', key(i, OWNERS), owner) then return {-2, '', 'none', -1, '', '', '', 0, 0, ''} end
  local shut = redis.call('EXISTS', key(i, PAUSED), key(i, ELSEWHERE)) > 0
  local due_there = shut and tonumber(redis.call('GET', key(i, ELSEWHERE)) or nil)
  if shut and redis.call('EXISTS', key(i, PAUSED)) == 1 then
    paused[#paused + 1], held_back[i] = i, true
  elseif due_there and now > due_there - BEFORE and now < due_there + BEHIND then
    paused[#paused + 1] = i
  elseif due_there and now < due_there and (not due or due_there - BEFORE < due) then
    due = due_there - BEFORE
  end
end

-- Whether a worker holds this delivery; if the worker died, until its lease is reclaimed.
local function held(id)
  local other = redis.call('HGET', key(at, TAKEN), id)
  local holds = other and redis.call('HGET', key(at, HOLDING), other)
  return holds and string.match(holds, '^%S+') == id and redis.call('HGET', key(at, OWNERS), other)
end

-- Whether this is a surplus copy: the sender of an outbox died, its jobs were sent again, and this one was already taken as
-- often as it was pushed. Jobs that are being sent now are counted too, because their sender may die.
local function doubled(p)
  if redis.call('EXISTS', key(at, RESENT), key(at, SENDING)) == 0 then return false end
  local allowed, counts = redis.call('HGET', key(at, RESENT), ARGV[16]), false
  if not allowed and redis.call('LLEN', key(at, SENDING)) > 0 then
    for _, each in ipairs(redis.call('LRANGE', key(at, SENDING), 0, -1)) do counts = counts or each == p end
  end
  if not allowed and not counts then return false end
  local times = redis.call('HINCRBY', key(at, RESENT), 'taken ' .. ARGV[16], 1)
  redis.call('EXPIRE', key(at, RESENT), 86400)
  return allowed and times > tonumber(allowed)
end

local function reject(id, p, reason)
  local record = string.format('{"id":"%s","error":"Malformed","reason":"%s","failed_at":%.3f}', base .. '.m', reason, now)
  bury(key(at, FAILED), key(at, FAILED_AT), base .. '.m', record, p, now, ARGV[3], ARGV[4], ARGV[5])
  note_ended(key(at, ENDED), id)
  return 'malformed', reason, base .. '.m'
end

local function lease(id, text)
  redis.call('HSET', key(at, TAKEN), id, owner)
  redis.call('HSET', key(at, HOLDING), owner, id .. ' ' .. ARGV[14])
  redis.call('ZADD', key(at, RESERVED), now + ARGV[2], text)
  redis.call('HSET', key(at, OWNERS), owner, text)
end

local function take(id, p)
  if redis.call('ZSCORE', key(at, ENDED), id) then return 'ended' end
  if held(id) then
    redis.call('HSET', key(at, HOLDING), redis.call('HGET', key(at, TAKEN), id), id .. ' ' .. ARGV[14]) -- the last handle counts
    return 'held'
  end
  if held_back[at] then
    if string.sub(key(at, READY), -5) == '.fifo' then return 'back' end -- in the outbox it would lose its place in its group
    redis.call('LPUSH', key(at, READY), p)
    note_ended(key(at, ENDED), id)
    return 'parked'
  end
  if doubled(p) then
    note_ended(key(at, ENDED), id)
    return 'dropped'
  end
  if most > 0 and #p > most then
    return reject(id, p, string.format('%d bytes, more than %d (sixteen times max_payload)', #p, most))
  end
  local q, once_leased = p, nil
  if may_be_tied(p) then q, once_leased = taken(p, key(at, READY) .. ':keyed', locks) end
  if not q then
    note_ended(key(at, ENDED), id)
    return 'dropped'
  end
  local text, mark, start, length, before = fresh_text(q, base)
  if not text then text, mark, start, length, before = other_text(q, base) end
  if not text then return reject(id, p, 'not a JSON object with a count of attempts') end
  lease(id, text)
  if once_leased then once_leased() end
  return 'leased', text, mark, start, length, before
end

local became, text, mark, start, length, before = 'none', '', '', 0, 0, ''
if at > 0 then became, text, mark, start, length, before = take(ARGV[13], ARGV[15]) end
if free and not (became == 'leased' and at == free) then -- else the new job has overwritten it
  redis.call('HDEL', key(free, OWNERS), owner)
  if delivery ~= '' then redis.call('HDEL', key(free, HOLDING), owner) end
end
if became ~= 'leased' then
  for i = 1, #KEYS / EACH do
    local next_at = redis.call('ZRANGE', key(i, DELAYED), 0, 0, 'WITHSCORES')[2]
    if next_at and (not due or tonumber(next_at) < due) then due = tonumber(next_at) end
    local waits = redis.call('LLEN', key(i, READY)) + redis.call('LLEN', key(i, SENDING)) > 0
    if waits or next_at and tonumber(next_at) <= now then outbox = outbox .. i .. ' ' end
  end
end
local wait = due and math.max(0, math.ceil((due - now) * 1000)) or -1
return {acked, delivery, became, wait, outbox, text or '', mark or '', start or 0, length or 0, before or '', unpack(paused)}
