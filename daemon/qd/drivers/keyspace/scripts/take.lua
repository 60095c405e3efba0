-- Taking jobs, put in front of turn.lua and lanes.lua. Add before remove, read before pop: wherever a script stops, every
-- payload is still stored somewhere. A queue is named by the index of its first key minus one.
-- KEYS  nine per queue, in order of priority: ready, reserved, delayed, notify, owners, paused, failed, failed_at, suspects
-- ARGV  1 master token   2 slot   3 lease in seconds   4 maximum of bytes of a payload, 0 for any
--       5 what is rarely needed: maximum of jobs to move from delayed; maximum of records in the failed store, '' for any
--         number; seconds it keeps them; maximum of their bytes; prefix of the names of locks ("100  86400 1048576 qd:unique:")
local EACH = 9
local most = tonumber(ARGV[4])
local time = redis.call('TIME')
local till = time[1] + ARGV[3] -- the lease's end; whole seconds are faster to write
till = till % 1 == 0 and string.format('%d.%06d', till, time[2]) or string.format('%.6f', till + time[2] / 1000000)
local due, fence = nil, nil -- fence: a function, see lanes.lua
local malformed = {} -- of each payload that is buried unread: index of its queue, id of its record, and the reason

-- Whether this error is about a key of another type. Such a queue counts as paused, and the others go on; the keeper reports it.
local function mistyped(why)
  local text = type(why) == 'table' and why.err or why
  return type(text) == 'string' and string.find(text, 'WRONGTYPE', 1, true)
end

local function now()
  return time[1] + time[2] / 1000000
end

local function settings()
  return string.match(ARGV[5], '^(%d+) (%d*) (%S+) (%d+) (.*)$')
end

local function migrate(i)
  local payloads = redis.call('ZRANGEBYSCORE', KEYS[i + 3], '-inf', string.format('%.6f', now()), 'LIMIT', 0, (settings()))
  if #payloads == 0 then return end
  local tokens = {}
  for k = 1, #payloads do tokens[k] = '1' end
  redis.call('ZREMRANGEBYRANK', KEYS[i + 3], 1, 0) -- removes nothing: commands that may be refused come before those that add
  redis.call('RPUSH', KEYS[i + 4], unpack(tokens))
  redis.call('RPUSH', KEYS[i + 1], unpack(payloads))
  redis.call('ZREMRANGEBYRANK', KEYS[i + 3], 0, #payloads - 1)
end

-- Remove from a list. Returns an error if an ACL forbids it.
local function pop(list, p, head)
  if head then return redis.pcall('LPOP', list) end
  return redis.pcall('LREM', list, 1, p)
end

-- From `list` into reserved. If the server refuses one command (an ACL), what was added is removed again: otherwise the job
-- would be reserved again and again and still be ready.
local function lease(i, list, p, head, owner, text)
  redis.call('LPOP', KEYS[i + 4]) -- the first write deletes: see turn.lua
  local owners, step, also = KEYS[i + 5], nil, fence and fence(KEYS[i + 5])
  redis.call('ZADD', KEYS[i + 2], till, text)
  if also then step = redis.pcall('HSET', owners, owner, text, unpack(also))
  else step = redis.pcall('HSET', owners, owner, text) end
  if type(step) ~= 'table' then step = pop(list, p, head) end
  if type(step) ~= 'table' then return nil end
  redis.call('ZREM', KEYS[i + 2], text)
  redis.call('HDEL', owners, owner)
  return step
end

-- From `list` into the failed store, unread.
local function reject(i, list, p, head, base, reason)
  local id = base .. '.m' .. #malformed
  local record = string.format('{"id":"%s","error":"Malformed","reason":"%s","failed_at":%.3f}', id, reason, now())
  local _, records, seconds, bytes = settings()
  local rare = rarely()
  redis.call('LPOP', KEYS[i + 4])
  rare.bury(KEYS[i + 7], KEYS[i + 8], id, record, p, now(), records, seconds, bytes)
  local step = pop(list, p, head)
  if type(step) ~= 'table' then
    malformed[#malformed + 1] = string.format('%d %s %s', i / EACH + 1, id, reason)
    return nil
  end
  rare.unbury(KEYS[i + 7], KEYS[i + 8], {id}, rare.kept_bytes(KEYS[i + 7], KEYS[i + 8]))
  return step
end

-- Remove from `list` a job that was cancelled or moved meanwhile.
local function drop(i, list, p, head)
  redis.call('LPOP', KEYS[i + 4])
  local step = pop(list, p, head)
  return type(step) == 'table' and step or nil
end

-- A job that may have killed a worker: from `list` to the suspects. Its token stays.
local function divert(i, list, p, head)
  redis.call('ZREM', KEYS[i + 2], '')
  redis.call('RPUSH', KEYS[i + 9], p)
  local step = pop(list, p, head)
  if type(step) ~= 'table' then return nil end
  redis.call('LTRIM', KEYS[i + 9], 0, -2)
  return step
end

-- Look at the first payload of a list of the queue, and lease it if it is readable. Returns its new text, mark, start, length
-- and what it replaced; false if the payload is gone from there, to look again; nil if there is none; or an error.
local function look(i, list, base, owner, diverts, again)
  local p, head = pick(list)
  if not p and list == KEYS[i + 1] then
    migrate(i)
    p, head = pick(list)
  end
  if not p then return nil end
  if most > 0 and #p > most and not foreign(p) then
    local reason = string.format('%d bytes, more than %d (sixteen times max_payload)', #p, most)
    return reject(i, list, p, head, base, reason) or false
  end
  local q, once_leased, text, mark, start, length, before, suspect = p, nil, nil, nil, nil, nil, nil, nil
  if may_be_tied(p) then q, once_leased = rarely().taken(p, KEYS[i + 1] .. ':keyed', (select(5, settings()))) end
  if not q then return drop(i, list, p, head) or false end
  text, mark, start, length, before = fresh_text(q, base)
  if not text then text, mark, start, length, before, suspect = rarely().other_text(q, base, again) end
  if suspect and diverts then return divert(i, list, p, head) or false end
  if not text then return reject(i, list, p, head, base, 'not a JSON object with a count of attempts') or false end
  local refused = lease(i, list, p, head, owner, text)
  if refused then return refused end
  if once_leased then once_leased() end
  return text, mark, start, length, before
end

-- Look again and again, but no script runs for long.
local function reserve(i, list, base, owner)
  for _ = 1, 100 do
    local text, mark, start, length, before = look(i, list, base, owner)
    if text ~= false then return text, mark, start, length, before end
  end
end

-- Whether no job is taken from a queue: it is paused, or one of `shut` (" 2 3 ").
local function closed(i, shut, found)
  if shut ~= '' and string.find(shut, ' ' .. i / EACH + 1 .. ' ', 1, true) then return true end
  return found > 0 and redis.call('EXISTS', KEYS[i + 6]) == 1
end

-- Returns the time, or nil if no delayed job waits.
local function note_due(i)
  local next_at = redis.call('ZRANGE', KEYS[i + 3], 0, 0, 'WITHSCORES')[2]
  if next_at and (not due or tonumber(next_at) < due) then due = tonumber(next_at) end
  return next_at
end

-- ms until the next delayed job, -1 for none.
local function wait_ms()
  return due and math.max(0, math.ceil((due - now()) * 1000)) or -1
end
