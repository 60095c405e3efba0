-- Batches, put in front of the scripts that send and answer their jobs. batch: a hash (see keys.py); pending: uuids of jobs
-- that have not ended; failed: uuid of a failed job -> queue and id of its record, '' if it never had one, RETRIED after the
-- job was sent again.
-- The end of a job is counted by deleting its uuid from pending, so no job counts twice, even if a process dies.
local CALLBACKS = {'then', 'catch', 'finally'}
local UNFINISHED, FINISHED = 2592000, 86400 -- seconds a batch is kept; with failed jobs as long as an unfinished one

local function push_one(ready, delayed, notify, payload, delay)
  if delay < 1 then redis.call('RPUSH', notify, '1') end
  if delay > 0 then
    redis.call('ZADD', delayed, due_after(clock(), delay), payload)
  else
    redis.call('RPUSH', ready, payload)
  end
end

-- Writes that change nothing: a missing right or a key of another type raises an error before anything is added.
local function try_push(ready, delayed, notify)
  redis.call('LTRIM', ready, 0, -1)
  redis.call('ZREM', delayed, '')
  redis.call('LTRIM', notify, 0, -1)
end

-- On a cluster other queues are on other servers. Jobs for them are put aside, and deleted once they were sent. A process that
-- counts a job also receives the callbacks, and the jobs that were put aside more than LEFT seconds ago; or all of them if only
-- those are pending, because no other job may end after it.
local APART, LEFT = '\n', 2 -- an impossible prefix; seconds
local fresh, is_callback = {}, {}
for _, name in ipairs(CALLBACKS) do is_callback[name] = true end

local function set_aside(batch, name, delay, queue, payload, now)
  fresh[name] = true
  redis.call('HSET', batch .. ':ends', name, string.format('%.0f %s %s\n', now, delay, queue) .. payload)
  redis.call('EXPIRE', batch .. ':ends', UNFINISHED)
end

-- {name, delay, queue, payload ...}, without those that the caller already has.
local function aside(batch, pending, known)
  local found, now = {}, tonumber(redis.call('TIME')[1])
  local flat = redis.call('HGETALL', batch .. ':ends')
  local all = redis.call('SCARD', pending) <= #flat / 2
  for k = 1, #flat, 2 do
    local name, at, delay, queue, payload = flat[k], string.match(flat[k + 1], '^(%d+) (%S+) ([^\n]*)\n(.*)$')
    local wanted = all or fresh[name] or is_callback[name] or at and now - at > LEFT
    if at and wanted and #found < 400 and not (known and known[name]) then
      for _, each in ipairs({name, delay, queue, payload}) do found[#found + 1] = each end
    end
  end
  return found
end

local function try_batch(batch, pending, failed, prefix)
  redis.call('HDEL', batch, '')
  redis.call('SREM', pending, '')
  redis.call('HDEL', failed, '')
  if prefix == APART then redis.call('HDEL', batch .. ':ends', '') return end
  for i = 1, #CALLBACKS do
    local queue = redis.call('HGET', batch, CALLBACKS[i] .. ':queue')
    if queue then
      local ready = prefix .. 'queues:' .. queue
      try_push(ready, ready .. ':delayed', ready .. ':notify')
    end
  end
end

-- Send a callback, once. Its moments (ten digits each) are set relative to now; the last one is createdAt.
local function call_back(batch, name, prefix, now)
  local stored = redis.call('HMGET', batch, name, name .. ':queue', name .. ':delay', name .. ':moments', name .. ':sent')
  local text = stored[1]
  if stored[5] then return end
  redis.call('HSET', batch, name .. ':sent', now)
  if not text then return end
  local starts = {}
  for start in string.gmatch(stored[4], '%d+') do starts[#starts + 1] = tonumber(start) end
  local later = now - tonumber(string.sub(text, starts[#starts] + 1, starts[#starts] + 10))
  for i = 1, #starts do
    local moment = tonumber(string.sub(text, starts[i] + 1, starts[i] + 10)) + later
    text = string.sub(text, 1, starts[i]) .. string.format('%.0f', moment) .. string.sub(text, starts[i] + 11)
  end
  if prefix == APART then return set_aside(batch, name, stored[3], stored[2], text, now) end
  local ready = prefix .. 'queues:' .. stored[2]
  push_one(ready, ready .. ':delayed', ready .. ':notify', text, tonumber(stored[3]))
end

-- After each change: send `then` if all jobs have succeeded, `finally` if none is left. Not while jobs are still being sent.
local function settle(batch, pending, failed, prefix, now)
  local state = redis.call('HMGET', batch, 'open', 'skipped', 'finished_at')
  if state[1] and tonumber(state[1]) > 0 or redis.call('SCARD', pending) > 0 then return end
  local bad = redis.call('HLEN', failed)
  if bad == 0 and not state[2] then call_back(batch, 'then', prefix, now) end
  if not state[3] then redis.call('HSET', batch, 'finished_at', now) end
  call_back(batch, 'finally', prefix, now)
  local kept = bad == 0 and FINISHED or UNFINISHED
  redis.call('EXPIRE', batch, kept)
  redis.call('EXPIRE', failed, kept)
end

-- The record of a failed job of a batch was sent again.
local RETRIED = 'retried '
local function note_retried(failed, job, place)
  if redis.call('HGET', failed, job) == place then redis.call('HSET', failed, job, RETRIED) end
end

-- Count the end of a job: 'done', 'skipped' (not run because the batch was cancelled) or 'failed'; or that a failed job was
-- 'retried'. place: queue and id of its record. Does nothing if the batch no longer exists or the job was counted before.
local function count(batch, pending, failed, job, how, place, prefix)
  if redis.call('EXISTS', batch) == 0 then return end
  if how == 'retried' then return note_retried(failed, job, place) end
  local now = tonumber(redis.call('TIME')[1])
  local first = redis.call('SREM', pending, job) == 1
  if how == 'failed' then
    if first or redis.call('HGET', failed, job) then
      redis.call('HSET', failed, job, place)
      redis.call('EXPIRE', failed, UNFINISHED)
      if not redis.call('HGET', batch, 'allow') and not redis.call('HGET', batch, 'catch:sent') then
        redis.call('HSET', batch, 'cancelled_at', now)
      end
      call_back(batch, 'catch', prefix, now)
    end
  else
    if not first then redis.call('HDEL', failed, job) end
    if first and how == 'skipped' and redis.call('HGET', batch, 'cancelled_at') then
      redis.call('HSET', batch, 'skipped', 1)
    end
  end
  settle(batch, pending, failed, prefix, now)
end
