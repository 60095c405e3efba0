-- Send jobs of which only one at a time may be there: each takes its lock, or is not sent.
-- KEYS ready, delayed, notify, and a lock each
-- ARGV owner, milliseconds it holds the lock at most, delay in seconds, payload; four a job
-- Returns for each job who holds its lock: itself when it was sent, else another.
-- A lock is taken before its job is added, and given back when that is refused: nothing is sent without its lock, and no
-- lock stays that has no job.
local now = clock()

local function add(delay, payload)
  if delay < 1 then
    local step = redis.pcall('RPUSH', KEYS[3], '1')
    if type(step) == 'table' then return step end
  end
  if delay == 0 then return redis.pcall('RPUSH', KEYS[1], payload) end
  return redis.pcall('ZADD', KEYS[2], due_after(now, delay), payload)
end

local holders = {}
for i = 1, #ARGV, 4 do
  local lock, owner = KEYS[4 + (i - 1) / 4], ARGV[i]
  if redis.call('SET', lock, owner, 'NX', 'PX', ARGV[i + 1]) then
    local step = add(tonumber(ARGV[i + 2]), ARGV[i + 3])
    if type(step) == 'table' then
      redis.call('EXPIRE', lock, 0)
      return step
    end
    holders[#holders + 1] = owner
  else
    holders[#holders + 1] = redis.call('GET', lock)
  end
end
return holders
