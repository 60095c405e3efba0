-- The first part of lock_take and lock_give: who waits in line for a lock.
-- line: zset, waiter -> us at which it came; seen: zset, waiter -> us until which it counts as there. A waiter asks again
-- before that; one that has died does not, and is passed over.
local function text(number) return string.format('%.0f', number) end

local function clock_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The first one in line that is still there, or nil.
local function first_in_line(line, seen, now)
  local gone = redis.call('ZRANGEBYSCORE', seen, '-inf', text(now), 'LIMIT', 0, 1000)
  if #gone > 0 then
    redis.call('ZREM', seen, unpack(gone))
    redis.call('ZREM', line, unpack(gone))
  end
  return redis.call('ZRANGE', line, 0, 0)[1]
end

-- Give the lock to the first one in line, for as long as it may take to come and get it.
local function hand_over(lock, line, seen, waiter, grant)
  redis.call('ZREM', line, waiter)
  redis.call('ZREM', seen, waiter)
  redis.call('SET', lock, waiter, 'PX', grant)
end
