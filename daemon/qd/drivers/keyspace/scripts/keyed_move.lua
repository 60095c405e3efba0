-- Change when the job that waits under a name is due.
-- KEYS ready, delayed, notify, keyed   ARGV name, delay in seconds
-- Returns 1, or 0 if none waits.
-- The job is added again with a new issue. If the old copy is ready already, it remains there, and the worker that takes it
-- drops it.
local old = entry_of(KEYS[4], ARGV[1])
if not old then return 0 end
local issue = string.format('%05d', (tonumber(string.sub(old.issue, 1, 5)) + 1) % 100000) .. string.sub(old.issue, 6)
local from, to = string.find(old.payload, '"key":"' .. old.issue .. ' ', 1, true)
local payload = string.sub(old.payload, 1, from + 6) .. issue .. string.sub(old.payload, to)
local refused = add(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], issue, tonumber(ARGV[2]), payload)
if refused then return refused end
redis.call('ZREM', KEYS[2], old.payload)
return 1
