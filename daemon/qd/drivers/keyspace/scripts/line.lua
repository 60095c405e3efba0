-- The first part of lock_take and lock_give: the line of waiters for a lock.
-- line: zset, waiter -> us at which it came; seen: zset, waiter -> us until which it counts as alive. A live waiter calls again
-- before that; a dead one does not, and is skipped.
local function text(number) return string.format('%.0f', number) end

local function clock_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The first live waiter in line, or nil.
local function first_in_line(line, seen, now)
  local gone = redis.call('ZRANGEBYSCORE', seen, '-inf', text(now), 'LIMIT', 0, 1000)
  if #gone > 0 then
    redis.call('ZREM', seen, unpack(gone))
    redis.call('ZREM', line, unpack(gone))
  end
  return redis.call('ZRANGE', line, 0, 0)[1]
end

-- Give the lock to a waiter for `grant` ms, within which it must call.
local function hand_over(lock, line, seen, waiter, grant)
  redis.call('ZREM', line, waiter)
  redis.call('ZREM', seen, waiter)
  redis.call('SET', lock, waiter, 'PX', grant)
end
