-- One turn of a worker: ack the job before, lease the next.
-- KEYS  eight a queue, in order of priority: ready, reserved, delayed, notify, owners, paused, failed, failed_at
-- ARGV  1 owner "<token>/<slot>"   2 lease in seconds   3 jobs to move from delayed at most
--       4 records in the failed store at most   5 seconds it keeps them
--       6 mark base "<token>.<slot>.<turn>"   7 index of the queue of the job to ack, 0 for none   8 its payload
-- Returns { acked (1, 0, -1 nothing to ack), ms until the next delayed job or -1, payloads buried as malformed,
--           index of the queue or 0, payload, mark, start, length, text before, paused queue index ... }
-- Add before remove, read before pop: whatever stops this script, every payload still stands somewhere.

local owner, base, done = ARGV[1], ARGV[6], tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local acked, malformed, paused, due = -1, 0, {}, nil

local function migrate(i)
  local payloads = redis.call('ZRANGEBYSCORE', KEYS[i + 2], '-inf', string.format('%.6f', now), 'LIMIT', 0, ARGV[3])
  if #payloads == 0 then return end
  local tokens = {}
  for k = 1, #payloads do tokens[k] = '1' end
  redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 1, 0) -- nothing yet: what may be refused comes before what adds
  redis.call('RPUSH', KEYS[i + 3], unpack(tokens))
  redis.call('RPUSH', KEYS[i], unpack(payloads))
  redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 0, #payloads - 1)
end

-- The first payload of the queue at KEYS[i] that can be read, leased. Those in front of it that cannot are buried.
local function reserve(i)
  local ready = KEYS[i]
  for _ = 1, 100 do
    local p, head = pick(ready)
    if not p then
      migrate(i)
      p, head = pick(ready)
      if not p then return nil end
    end
    local text, mark, start, length, before = fresh_text(p, base)
    if not text then text, mark, start, length, before = other_text(p, base) end
    if text then
      redis.call('ZADD', KEYS[i + 1], now + ARGV[2], text)
      redis.call('HSET', KEYS[i + 4], owner, text)
    else
      local id = base .. '.m' .. malformed
      local record = string.format('{"id":"%s","error":"Malformed","reason":"not a JSON object with a count of attempts","failed_at":%.3f}', id, now)
      bury(KEYS[i + 6], KEYS[i + 7], id, record, p, now, ARGV[4], ARGV[5])
      malformed = malformed + 1
    end
    if head then redis.call('LPOP', ready) else redis.call('LREM', ready, 1, p) end
    redis.call('LPOP', KEYS[i + 3])
    if text then return text, mark, start, length, before end
  end
end

-- The first write takes something away, also when there is nothing to take: then a server at its maxmemory lets the
-- rest of the script pass, and a full queue can be worked off.
if done > 0 then
  local i = (done - 1) * 8
  acked = redis.call('ZREM', KEYS[i + 2], ARGV[8])
  redis.call('HDEL', KEYS[i + 5], owner)
else
  redis.call('HDEL', KEYS[5], '')
end
for i = 1, #KEYS, 8 do
  if redis.call('EXISTS', KEYS[i + 5]) == 1 then
    paused[#paused + 1] = (i + 7) / 8
  else
    local text, mark, start, length, before = reserve(i)
    if text then return {acked, -1, malformed, (i + 7) / 8, text, mark, start, length, before, unpack(paused)} end
    local next_at = redis.call('ZRANGE', KEYS[i + 2], 0, 0, 'WITHSCORES')[2]
    if next_at and (not due or tonumber(next_at) < due) then due = tonumber(next_at) end
  end
end
local wait = due and math.max(0, math.ceil((due - now) * 1000)) or -1
return {acked, wait, malformed, 0, '', '', 0, 0, '', unpack(paused)}
