-- One turn of a worker: ack the job before, lease the next.
-- KEYS  eight a queue, in order of priority: ready, reserved, delayed, notify, owners, paused, failed, failed_at
-- ARGV  1 owner "<token>/<slot>"   2 lease in seconds   3 jobs to move from delayed at most
--       4 mark base "<token>.<slot>.<turn>"   5 index of the queue of the job to ack, 0 for none   6 its payload
-- Returns { acked (1, 0, -1 nothing to ack), ms until the next delayed job or -1, payloads buried as malformed,
--           index of the queue or 0, payload, mark, start, length, text before, paused queue index ... }
-- Add before remove, read before pop: whatever stops this script, every payload still stands somewhere.

local owner, lease, base = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local buried = 0

local function bury(p, head, ready, notify, failed, failed_at)
  local id = base .. '.m' .. buried
  local record = string.format('{"id":"%s","error":"Malformed","reason":"not a JSON object with a count of attempts","failed_at":%.3f}', id, now)
  redis.call('HSET', failed, id, record .. '\n' .. p)
  redis.call('ZADD', failed_at, now, id)
  take(ready, notify, p, head)
  buried = buried + 1
end

local function migrate(ready, delayed, notify, most)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', string.format('%.6f', now), 'LIMIT', 0, most)
  if #due == 0 then return end
  local tokens = {}
  for i = 1, #due do tokens[i] = '1' end
  redis.call('RPUSH', ready, unpack(due))
  redis.call('RPUSH', notify, unpack(tokens))
  redis.call('ZREMRANGEBYRANK', delayed, 0, #due - 1)
end

local function reserve(i)
  local ready, reserved, delayed, notify, owners = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4]
  for _ = 1, 100 do
    local p, head = pick(ready)
    if not p then
      migrate(ready, delayed, notify, tonumber(ARGV[3]))
      p, head = pick(ready)
      if not p then return nil end
    end
    local text, mark, start, length, before
    if string.find(p, '^%s*{') and string.find(p, '}%s*$', math.max(1, #p - 64)) then
      text, mark, start, length, before = reserve_text(p, base)
    end
    if text then
      redis.call('ZADD', reserved, string.format('%.3f', now + lease), text)
      redis.call('HSET', owners, owner, text)
      take(ready, notify, p, head)
      return {text, mark, start, length, before}
    end
    bury(p, head, ready, notify, KEYS[i + 6], KEYS[i + 7])
  end
end

local acked, paused, due = -1, {}, nil
local done = tonumber(ARGV[5])
if done > 0 then
  local i = (done - 1) * 8
  acked = redis.call('ZREM', KEYS[i + 2], ARGV[6])
  redis.call('HDEL', KEYS[i + 5], owner)
end
for i = 1, #KEYS, 8 do
  local queue = (i + 7) / 8
  if redis.call('EXISTS', KEYS[i + 5]) == 1 then
    paused[#paused + 1] = queue
  else
    local job = reserve(i)
    if job then return {acked, -1, buried, queue, job[1], job[2], job[3], job[4], job[5], unpack(paused)} end
    local next_at = redis.call('ZRANGE', KEYS[i + 2], 0, 0, 'WITHSCORES')[2]
    if next_at and (not due or tonumber(next_at) < due) then due = tonumber(next_at) end
  end
end
local wait = due and math.max(0, math.ceil((due - now) * 1000)) or -1
return {acked, wait, buried, 0, '', '', 0, 0, '', unpack(paused)}
