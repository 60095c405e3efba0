-- One turn of a worker that has several jobs: ack what has finished, put back what has not started, lease more.
-- A seat is slot + 256 x lane. The fence is the field "<token>/<slot>:turn" of one of the owners hashes: the number of the
-- last call. A call that names an older one as the last whose reply its worker has does nothing: it is late, or a call was
-- executed whose reply is lost.
-- KEYS  see take.lua
-- ARGV  1 to 5 see take.lua   6 key of the hash with the fence
--       7 last call whose reply the worker has   8 number of this call   9 its first turn number
--       10 lane of a job that is taken by itself   11 'd': jobs that may have killed a worker go to the suspects, 's': take
--       only suspects, in the free lanes those that may run together, '': neither   12 indexes of queues from which no job is taken (" 2 3 ")
--       13 number of free lanes   14... these lanes
--       then groups, each of one queue, those that may be refused first: 'back' or 'done', index of the queue, number of jobs, key of cancelled jobs, the seats,
--       the payloads as reserved, and for 'back' the payloads to put back at the head of ready
-- Returns { -2 } if it is late, or { 0, "group:number ..." of acks whose lease was lost, ms until the next delayed job or -1,
--           payloads buried unread ("1 id reason"), paused queues (" 2 3"), index of the queue or 0,
--           then 'each', and for each job payload, mark, start, length, text before; or 'together', payloads ... }
local token, slot, number, last, single = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[9]), ARGV[8], tonumber(ARGV[10])
local how, shut, many = ARGV[11], ARGV[12], tonumber(ARGV[13])
local MUCH = 262144 -- bytes of the payloads of a turn
local fenced, field = ARGV[6], token .. '/' .. ARGV[2] .. ':turn'

local known = redis.pcall('HGET', fenced, field)
if type(known) == 'table' then
  if not mistyped(known) then return known end
  known = nil -- after a broken call the worker waits until held_lanes.lua can write the fence
end
if known and tonumber(known) > tonumber(ARGV[7]) then return {-2} end

-- To be written together with owners; in another hash it is written at once.
function fence(owners)
  if owners == fenced then return {field, last} end
  redis.pcall('HSET', fenced, field, last)
  return {}
end

local groups, at = {}, 14 + many
while ARGV[at] do
  local n = tonumber(ARGV[at + 2])
  groups[#groups + 1] = {back = ARGV[at] == 'back', i = (ARGV[at + 1] - 1) * EACH, n = n, cancelled = ARGV[at + 3], at = at + 4}
  at = at + 4 + (ARGV[at] == 'back' and 3 or 2) * n
end

-- The members of a group that are still reserved, and which of its jobs those are. Read before anything is written: an error
-- here leaves everything as it was.
for _, group in ipairs(groups) do
  local n, from = group.n, group.at + group.n
  group.there, group.members = {}, {}
  if #groups == 1 and n == 1 and not group.back then break end
  local scores = redis.pcall('ZMSCORE', KEYS[group.i + 2], unpack(ARGV, from, from + n - 1))
  if scores.err and not mistyped(scores) then return scores end
  group.there[1] = false -- mistyped: the reservations are gone
  for k, score in ipairs(scores) do
    group.there[k] = score
    if score then group.members[#group.members + 1] = ARGV[from + k - 1] end
  end
end

-- Put back in order: the last one is pushed first. A job that was cancelled meanwhile gets a mark that makes the next worker
-- drop it.
local function put_back(group)
  local i, n, texts, tokens, cancelled = group.i, group.n, {}, {}, {}
  local marks = redis.pcall('HKEYS', group.cancelled)
  for k = group.at + n - 1, group.at, -1 do
    if group.there[k - group.at + 1] then
      local text, mark = stopped(marks, token .. '/' .. ARGV[k], ARGV[k + n], ARGV[k + 2 * n])
      texts[#texts + 1], tokens[#tokens + 1], cancelled[#cancelled + 1] = text, '1', mark
    end
  end
  if #texts == 0 then return end
  redis.call('ZREM', KEYS[i + 2], '')
  redis.call('RPUSH', KEYS[i + 4], unpack(tokens))
  redis.call('LPUSH', KEYS[i + 1], unpack(texts))
  redis.call('ZREM', KEYS[i + 2], unpack(group.members))
  if #cancelled > 0 then redis.call('HDEL', group.cancelled, unpack(cancelled)) end
end

-- The first write deletes: see turn.lua.
local lost, cleared = {}, {}
for g, group in ipairs(groups) do
  local i, n = group.i, group.n
  if group.back then
    local ok, why = pcall(put_back, group) -- mistyped: they return when their leases end
    if not ok and not mistyped(why) then return type(why) == 'table' and why or redis.error_reply(why) end
  elseif group.there[1] == nil then
    local acked = redis.pcall('ZREM', KEYS[i + 2], ARGV[group.at + 1])
    if type(acked) == 'table' and not mistyped(acked) then return acked end
    if acked ~= 1 then lost[1] = g .. ':1' end
  else
    if #group.members > 0 then redis.call('ZREM', KEYS[i + 2], unpack(group.members)) end
    for k = 1, n do
      if not group.there[k] then lost[#lost + 1] = g .. ':' .. k end
    end
  end
  cleared[i] = cleared[i] or {}
  for k = group.at, group.at + n - 1 do cleared[i][token .. '/' .. ARGV[k]] = true end
end

-- Ordinary payloads from the head of ready, as many as lanes are free, but no more than the share of this worker. Returns their
-- new texts; an error; or nil if the head is no such payload.
local function bulk(i)
  local ready, share = KEYS[i + 1], many
  if many > 1 then share = math.min(many, 1 + math.floor(redis.call('LLEN', ready) / 16)) end
  local texts, scores, pairs_of, bytes, step, n = {}, {}, {}, 0, 4, 0
  repeat
    local wanted = math.min(share - n, step) -- large payloads must not be read by the hundred
    local some, before = redis.call('LRANGE', ready, n, n + wanted - 1), n
    for _, p in ipairs(some) do
      local from = fresh_at(p)
      bytes = bytes + #p
      if not from or may_be_tied(p) or foreign(p) or most > 0 and #p > most or n > 0 and bytes > MUCH then break end
      local seat, turn = string.format('%d', slot + 256 * ARGV[14 + n]), string.format('%.0f', number + n)
      local mark = token .. '.' .. seat .. '.' .. turn .. '.1"'
      n = n + 1
      texts[n] = string.sub(p, 1, from) .. '"attempts":1,"rsv":"' .. mark .. string.sub(p, from + 13)
      scores[2 * n - 1], scores[2 * n] = till, texts[n]
      pairs_of[2 * n - 1], pairs_of[2 * n] = token .. '/' .. seat, texts[n]
    end
    step = step * 4
  until n == share or n < before + wanted
  if n == 0 then return nil end
  redis.call('LTRIM', KEYS[i + 4], n, -1)
  local also = fence(KEYS[i + 5])
  redis.call('ZADD', KEYS[i + 2], unpack(scores))
  pairs_of[2 * n + 1], pairs_of[2 * n + 2] = also[1], also[2]
  local step_of = redis.pcall('HSET', KEYS[i + 5], unpack(pairs_of))
  if type(step_of) ~= 'table' then step_of = redis.pcall('LTRIM', ready, n, -1) end
  if not step_of.err then
    for k = 1, cleared[i] and 2 * n or 0, 2 do cleared[i][pairs_of[k]] = nil end
    return texts
  end
  redis.call('ZREM', KEYS[i + 2], unpack(texts))
  for k = 1, 2 * n, 2 do redis.call('HDEL', KEYS[i + 5], pairs_of[k]) end
  return step_of
end

-- Whether this suspect may run together with others: its last attempt did, and it was no suspect then.
local function ran_beside(p)
  local _, _, _, _, before = rarely().other_text(p, token)
  local seat = before and string.match(before, '^"attempts":%d+[^{}]*,"rsv":"%w+%.(%d+)%.%d+%.[1-9]%d*"$')
  return seat and tonumber(seat) >= 256
end

-- Suspects that run together, in the free lanes: a list of five values for each. Empty if the first one must run alone, or is
-- the only one. Or an error.
local function together(i)
  local list, jobs = KEYS[i + 9], {}
  if redis.call('LLEN', list) < 2 then return jobs end
  for n = 1, many do
    local p = redis.call('LINDEX', list, 0)
    if not p or not ran_beside(p) then break end
    local seat = string.format('%d', slot + 256 * ARGV[13 + n])
    local base, owner = token .. '.' .. seat .. '.' .. string.format('%.0f', number + #jobs / 5), token .. '/' .. seat
    local got = {look(i, list, base, owner, false, true)}
    if type(got[1]) == 'table' then return #jobs == 0 and got[1] or jobs end
    if got[1] then
      if cleared[i] then cleared[i][owner] = nil end
      for k = 1, 5 do jobs[#jobs + 1] = got[k] end
    end
  end
  return jobs
end

local paused, reply = {}, nil
local seat = string.format('%d', slot + 256 * single)
local base, owner = token .. '.' .. seat .. '.' .. string.format('%.0f', number), token .. '/' .. seat

-- Reserve from one queue: sets `reply` if it can, or returns an error.
local function reserve_from(i, found)
  local text, mark, start, length, before
  local jobs = found > 0 and how == 's' and together(i) or {}
  if jobs.err then return jobs end
  if #jobs > 0 then reply = {i / EACH + 1, 'each', unpack(jobs)} return nil end
  if found > 0 and how ~= 'd' then text, mark, start, length, before = reserve(i, KEYS[i + 9], base, owner) end
  for _ = 1, (text or how == 's') and 0 or 100 do
    if redis.call('EXISTS', KEYS[i + 1]) == 0 then migrate(i) end
    local texts = bulk(i)
    if texts and texts.err then return texts end
    if texts then reply = {i / EACH + 1, 'together', unpack(texts)} return nil end
    text, mark, start, length, before = look(i, KEYS[i + 1], base, owner, how == 'd')
    if text ~= false then break end
  end
  if type(text) == 'table' then return text end
  if not text then note_due(i) return nil end
  if cleared[i] then cleared[i][owner] = nil end
  reply = {i / EACH + 1, 'each', text, mark, start, length, before}
end

local next_at = 0 -- of the queue behind the one that is looked at

local function take()
  local found = paused_or_suspects()
  while next_at < #KEYS do
    local i = next_at
    next_at = next_at + EACH
    if closed(i, shut, found) then
      paused[#paused + 1] = i / EACH + 1
    else
      local refused = reserve_from(i, found)
      if refused or reply then return refused end
    end
  end
end

-- Once something was answered, the reply says so: a refusal from here on is the next turn's.
local refused
if many > 0 then
  local skips
  repeat
    local _, why = pcall(take)
    refused, skips = why, mistyped(why)
    if skips then paused[#paused + 1] = next_at / EACH end
  until not skips
end
for i, fields in pairs(cleared) do
  local names = {}
  for name in pairs(fields) do names[#names + 1] = name end
  if #names > 0 then redis.pcall('HDEL', KEYS[i + 5], unpack(names)) end
end
if refused and #groups == 0 then return type(refused) == 'table' and refused or redis.error_reply(refused) end
if #groups > 0 and not reply then redis.pcall('HSET', fenced, field, last) end
return {0, table.concat(lost, ' '), reply and -1 or wait_ms(), malformed, table.concat(paused, ' '), unpack(reply or {0})}
