-- Unique jobs, put in front of the scripts that send them.
-- The lock is taken before the job is added, and freed if adding is refused: no job without its lock, no lock without a job.
local function put(ready, delayed, notify, delay, payload)
  if delay < 1 then
    local step = redis.pcall('RPUSH', notify, '1')
    if type(step) == 'table' then return step end
  end
  if delay == 0 then return redis.pcall('RPUSH', ready, payload) end
  return redis.pcall('ZADD', delayed, due_after(clock(), delay), payload)
end

-- Returns the owner of the lock: the job itself if it was sent, else another; or the server's error.
local function put_single(ready, delayed, notify, lock, owner, hold_ms, delay, payload)
  local step = redis.pcall('SET', lock, owner, 'NX', 'PX', hold_ms)
  if not step then return redis.pcall('GET', lock) end
  if step.err then return step end
  step = put(ready, delayed, notify, delay, payload)
  if type(step) ~= 'table' then return owner end
  redis.call('EXPIRE', lock, 0)
  return step
end
