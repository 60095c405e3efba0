-- The keeper's beat: everything periodic, in one call.
-- KEYS  1 restart stamp, 2 down, 3 masters, 4 cancelled jobs; then six per queue: ready, reserved, delayed, notify, owners,
--      paused
-- ARGV  1 master token   2 report (JSON, '' = none)   3 lease in seconds   4 renew (1 or 0)
--       5 last moment of this clock at which it may reclaim, 0 for never
--       6 maximum of due jobs to move per queue   7 maximum of tokens to add per queue   8... seats of live workers, at most 500
-- Returns { unix seconds, restart stamp, down, ms until the next delayed job or -1, jobs still due (1 or 0),
--           jobs reclaimed, queues with ready jobs that no worker takes ("1 3"), cancelled jobs ("seat:turn seat:turn"),
--           "seat:turn" of lost leases ..., and if there are any: { index of a queue with a key of another type, error, ... } }
local token, lease, most = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local stamp = string.format('%.6f', now)
local more, reclaimed, due, lost, waiting = 0, 0, nil, {}, {}
redis.call('HDEL', KEYS[3], '') -- the first write deletes: see turn.lua

local function to_ready(i, payloads)
  local tokens = {}
  for k = 1, #payloads do tokens[k] = '1' end
  redis.call('RPUSH', KEYS[i + 3], unpack(tokens)) -- commands that may be refused come before those that add
  redis.call('RPUSH', KEYS[i], unpack(payloads))
end

local fields = {}
for k = 8, #ARGV do fields[k - 7] = token .. '/' .. ARGV[k] end

-- One command renews all of them. If its count says that some are missing, or were renewed in the same millisecond, each is
-- looked up.
local function renew(i)
  if ARGV[4] ~= '1' or #ARGV < 8 then return end
  local at, scores = {}, {}
  local owned, till = redis.call('HMGET', KEYS[i + 4], unpack(fields)), string.format('%.3f', now + lease)
  for k, payload in ipairs(owned) do
    if payload then scores[#scores + 1], scores[#scores + 2], at[#at + 1] = till, payload, k end
  end
  if #at == 0 or redis.call('ZADD', KEYS[i + 1], 'XX', 'CH', unpack(scores)) == #at then return end
  for _, k in ipairs(at) do
    if not redis.call('ZSCORE', KEYS[i + 1], owned[k]) then
      local mark = string.format('"rsv":"%s%%.%s%%.(%%d+)%%.', token, ARGV[k + 7])
      lost[#lost + 1] = ARGV[k + 7] .. ':' .. (string.match(owned[k], mark) or '0')
    end
  end
end

-- Delete the owner of a job. Its arguments may contain other marks: the hash decides which one is right.
local function disown(owners, payload)
  local tried = 0
  for master, slot in string.gmatch(payload, '"rsv":"(%w+)%.(%d+)%.%d+%.%d+"') do
    local owner = master .. '/' .. slot
    tried = tried + 1
    if tried > 16 then return end
    if redis.call('HGET', owners, owner) == payload then return redis.call('HDEL', owners, owner) end
  end
end

-- Jobs that were cancelled while they ran get a mark that makes the next worker drop them.
local function dropped(i, payloads)
  local texts = {unpack(payloads)}
  for _, mark in ipairs(redis.pcall('HKEYS', KEYS[4])) do
    local needle, owner = '"rsv":"' .. mark .. '.', string.gsub(mark, '%.(%d+)%.%d+$', '/%1')
    for k, payload in ipairs(payloads) do
      local _, at = string.find(payload, needle, 1, true)
      if at and redis.call('HGET', KEYS[i + 4], owner) == payload then
        texts[k] = string.sub(payload, 1, at) .. 'c' .. string.sub(payload, string.find(payload, '"', at, true), -1)
        redis.call('HDEL', KEYS[4], mark)
      end
    end
  end
  return texts
end

local function reclaim(i)
  if now > tonumber(ARGV[5]) then return end
  local expired = redis.call('ZRANGEBYSCORE', KEYS[i + 1], '-inf', stamp, 'LIMIT', 0, 100)
  if #expired == 0 then return end
  redis.call('ZREM', KEYS[i + 1], '')
  to_ready(i, dropped(i, expired))
  for _, payload in ipairs(expired) do
    redis.call('ZREM', KEYS[i + 1], payload)
    disown(KEYS[i + 4], payload)
  end
  reclaimed = reclaimed + #expired
  if #expired == 100 then more = 1 end
end

local function migrate(i)
  local payloads = redis.call('ZRANGEBYSCORE', KEYS[i + 2], '-inf', stamp, 'LIMIT', 0, most)
  if #payloads > 0 then
    redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 1, 0)
    to_ready(i, payloads)
    redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 0, #payloads - 1)
    if #payloads == most then more = 1 end
  end
  local next_at = redis.call('ZRANGE', KEYS[i + 2], 0, 0, 'WITHSCORES')[2]
  if next_at and (not due or tonumber(next_at) < due) then due = tonumber(next_at) end
end

-- There are ready jobs, the queue is not paused, and no worker holds a job of it.
local function waits(i, ready)
  if ready == 0 or redis.call('ZCARD', KEYS[i + 1]) > 0 or redis.call('EXISTS', KEYS[i + 5]) == 1 then return end
  waiting[#waiting + 1] = (i + 1) / 6
end

-- One token per ready job and suspect: jobs may be pushed without one (an old Laravel, a plain RPUSH), and abandoned waits leave extra
-- tokens.
local function tokens(i)
  local have = redis.call('LLEN', KEYS[i + 3])
  local ready = redis.call('LLEN', KEYS[i]) + redis.call('LLEN', KEYS[i] .. ':suspects')
  for _ = 1, math.min(ready - have, tonumber(ARGV[7])) do redis.call('RPUSH', KEYS[i + 3], '1') end
  if have > ready then redis.call('LTRIM', KEYS[i + 3], have - ready, -1) end
  waits(i, ready)
end

-- Cancelled jobs that workers of this master are running. Entries of ended jobs, and those older than a day, are deleted. A key
-- of another type stops only this part.
local function cancelled()
  local marks, running = redis.pcall('HGETALL', KEYS[4]), {}
  for k = 1, #marks, 2 do
    local master, seat, turn = string.match(marks[k], '^(%w+)%.(%d%d?%d?%d?%d?%d?)%.(%d+)$')
    local held = master ~= token and tonumber(marks[k + 1]) and now - marks[k + 1] < 86400
    for i = 5, master == token and #KEYS or 0, 6 do
      local payload = redis.pcall('HGET', KEYS[i + 4], master .. '/' .. seat)
      if type(payload) == 'string' and string.find(payload, '"rsv":"' .. marks[k] .. '.', 1, true) then
        held, running[#running + 1] = true, seat .. ':' .. turn
      end
    end
    if not held then redis.call('HDEL', KEYS[4], marks[k]) end
  end
  return table.concat(running, ' ')
end

-- The leases of all queues first. Each queue separately: keys of another type in one of them are reported, and the others go on.
local failure, mistyped, of = nil, {}, {}
local function each(step)
  for i = 5, #KEYS, 6 do
    local ok, why = true, nil
    if not of[i] then ok, why = pcall(step, i) end
    if not ok then
      local text = type(why) == 'table' and why.err or why
      if not string.find(text, 'WRONGTYPE', 1, true) then failure = failure or text
      else of[i], mistyped[#mistyped + 1], mistyped[#mistyped + 2] = true, (i + 1) / 6, text end
    end
  end
  return failure ~= nil
end
if each(renew) or each(reclaim) or each(migrate) or each(tokens) then return redis.error_reply(failure) end
if ARGV[2] ~= '' then redis.call('HSET', KEYS[3], token, string.format('{"seen_at":%.3f,%s', now, string.sub(ARGV[2], 2))) end
local down = redis.pcall('GET', KEYS[2]) -- a key of another type counts as missing, as for readers that use MGET
if type(down) ~= 'string' then down = '' elseif down == '' then down = '?' end
local wait = due and math.max(0, math.ceil((due - now) * 1000)) or -1
if #mistyped > 0 then lost[#lost + 1] = mistyped end
return {stamp, redis.call('GET', KEYS[1]) or '', down, wait, more, reclaimed, table.concat(waiting, ' '), cancelled(), unpack(lost)}
