-- One turn of a worker: ack the previous job, lease the next.
-- KEYS  eight per queue, in order of priority: ready, reserved, delayed, notify, owners, paused, failed, failed_at
-- ARGV  1 owner "<token>/<slot>"   2 lease in seconds   3 maximum of jobs to move from delayed
--       4 maximum of records in the failed store, '' for any number   5 seconds it keeps them   6 maximum of their bytes
--       7 maximum of bytes of a payload, 0 for any   8 prefix of the names of locks
--       9 mark base "<token>.<slot>.<turn>"   10 index of the queue of the job to ack, 0 for none   11 its payload
--       12 indexes of queues from which no job is taken (" 2 3 "), '' for none: returned as paused
-- Returns { acked (1, 0, -1 nothing to ack, -2 this worker holds another job), ms until the next delayed job or -1,
--           payloads buried unread, index of the queue or 0, payload, mark, start, length, text before,
--           paused queue index ... }
-- Add before remove, read before pop: wherever this script stops, every payload is still stored somewhere.

local owner, most, locks, base, done = ARGV[1], tonumber(ARGV[7]), ARGV[8], ARGV[9], tonumber(ARGV[10])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local acked, malformed, paused, due, free = -1, 0, {}, nil, nil

local function migrate(i)
  local payloads = redis.call('ZRANGEBYSCORE', KEYS[i + 2], '-inf', string.format('%.6f', now), 'LIMIT', 0, ARGV[3])
  if #payloads == 0 then return end
  local tokens = {}
  for k = 1, #payloads do tokens[k] = '1' end
  redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 1, 0) -- removes nothing: commands that may be refused come before those that add
  redis.call('RPUSH', KEYS[i + 3], unpack(tokens))
  redis.call('RPUSH', KEYS[i], unpack(payloads))
  redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 0, #payloads - 1)
end

-- Remove from ready. Returns an error if an ACL forbids it.
local function pop(ready, p, head)
  if head then return redis.pcall('LPOP', ready) end
  return redis.pcall('LREM', ready, 1, p)
end

-- From ready into reserved. If the server refuses one command (an ACL), what was added is removed again: otherwise the job
-- would be reserved again and again and still be ready.
local function lease(i, p, head, text)
  redis.call('LPOP', KEYS[i + 3])
  redis.call('ZADD', KEYS[i + 1], now + ARGV[2], text)
  local step = redis.pcall('HSET', KEYS[i + 4], owner, text)
  if type(step) ~= 'table' then step = pop(KEYS[i], p, head) end
  if type(step) ~= 'table' then return nil end
  redis.call('ZREM', KEYS[i + 1], text)
  redis.call('HDEL', KEYS[i + 4], owner)
  return step
end

-- From ready into the failed store, unread.
local function reject(i, p, head, reason)
  local id = base .. '.m' .. malformed
  local record = string.format('{"id":"%s","error":"Malformed","reason":"%s","failed_at":%.3f}', id, reason, now)
  redis.call('LPOP', KEYS[i + 3])
  bury(KEYS[i + 6], KEYS[i + 7], id, record, p, now, ARGV[4], ARGV[5], ARGV[6])
  local step = pop(KEYS[i], p, head)
  if type(step) ~= 'table' then malformed = malformed + 1 return nil end
  unbury(KEYS[i + 6], KEYS[i + 7], {id}, kept_bytes(KEYS[i + 6], KEYS[i + 7]))
  return step
end

-- Remove from ready a job that was cancelled or moved meanwhile.
local function drop(i, p, head)
  redis.call('LPOP', KEYS[i + 3])
  local step = pop(KEYS[i], p, head)
  return type(step) == 'table' and step or nil
end

-- Lease the first readable payload of the queue at KEYS[i], and bury unreadable ones in front of it. May return an error.
local function reserve(i)
  local ready = KEYS[i]
  for _ = 1, 100 do
    local p, head = pick(ready)
    if not p then
      migrate(i)
      p, head = pick(ready)
      if not p then return nil end
    end
    local text, mark, start, length, before, refused, once_leased
    local q = p
    if most > 0 and #p > most and not foreign(p) then
      refused = reject(i, p, head, string.format('%d bytes, more than %d (sixteen times max_payload)', #p, most))
    else
      if may_be_tied(p) then q, once_leased = taken(p, KEYS[i] .. ':keyed', locks) end
      if q then text, mark, start, length, before = fresh_text(q, base) end
      if q and not text then text, mark, start, length, before = other_text(q, base) end
      if text then refused = lease(i, p, head, text)
      elseif not q then refused = drop(i, p, head)
      else refused = reject(i, p, head, 'not a JSON object with a count of attempts') end
    end
    if refused then return refused end
    if text and once_leased then once_leased() end
    if text then return text, mark, start, length, before end
  end
end

-- The first write deletes, even if there is nothing to delete: then a server at its maxmemory executes the rest of the script,
-- and workers can drain a full queue.
if done > 0 then
  local i = (done - 1) * 8
  acked = redis.call('ZREM', KEYS[i + 2], ARGV[11])
  if acked == 1 or redis.call('HGET', KEYS[i + 5], owner) == ARGV[11] then
    redis.call('HDEL', KEYS[i + 5], owner)
    free = i + 5
  end
else
  redis.call('ZREM', KEYS[2], '')
  redis.call('HDEL', KEYS[5], '')
end
-- One job at a time. If the worker holds another one, this call was late and the worker had abandoned it, or such a late call
-- reserved that job. Nothing is reserved, and the worker queries what it owns.
for i = 5, #KEYS, 8 do
  if i ~= free and redis.call('HGET', KEYS[i], owner) then return {-2, -1, 0, 0, '', '', 0, 0, ''} end
end
local shut = ARGV[12]
for i = 1, #KEYS, 8 do
  if (shut ~= '' and string.find(shut, ' ' .. (i + 7) / 8 .. ' ', 1, true)) or redis.call('EXISTS', KEYS[i + 5]) == 1 then
    paused[#paused + 1] = (i + 7) / 8
  else
    local text, mark, start, length, before = reserve(i)
    if type(text) == 'table' then return text end
    if text then return {acked, -1, malformed, (i + 7) / 8, text, mark, start, length, before, unpack(paused)} end
    local next_at = redis.call('ZRANGE', KEYS[i + 2], 0, 0, 'WITHSCORES')[2]
    if next_at and (not due or tonumber(next_at) < due) then due = tonumber(next_at) end
  end
end
local wait = due and math.max(0, math.ceil((due - now) * 1000)) or -1
return {acked, wait, malformed, 0, '', '', 0, 0, '', unpack(paused)}
