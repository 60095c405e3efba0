-- Keyed jobs, put in front of the scripts that send, move and cancel them. The hash `keyed` has a field per job that waits
-- under a name: ISSUE DUE PAYLOAD; see sending.py.

local now = clock()

-- nil: no job waits under this name.
local function entry_of(entries, name)
  local entry = redis.call('HGET', entries, name)
  if not entry then return nil end
  local issue, due, payload = string.match(entry, '^(%S+) (%S+) (.*)$')
  return {issue = issue, due = due, payload = payload}
end

-- Add to ready or delayed, and write the entry; if the server refuses one, undo the other. Returns the error, or nil.
local function add(ready, delayed, notify, entries, name, issue, delay, payload)
  local due = due_after(now, delay)
  local step = nil
  if delay < 1 then step = redis.pcall('RPUSH', notify, '1') end
  if type(step) == 'table' then return step end
  if delay == 0 then step = redis.pcall('RPUSH', ready, payload)
  else step = redis.pcall('ZADD', delayed, due, payload) end
  if type(step) == 'table' then return step end
  step = redis.pcall('HSET', entries, name, issue .. ' ' .. due .. ' ' .. payload)
  if type(step) ~= 'table' then return nil end
  if delay == 0 then redis.call('LTRIM', ready, 0, -2) else redis.call('ZREM', delayed, payload) end
  return step
end
