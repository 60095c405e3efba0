-- When a job falls due, put in front of the scripts that delay one.

-- Unix seconds by this server's clock.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- The score of what is due `delay` seconds after `now`: exact to the millisecond and never early.
local function due_after(now, delay)
  return string.format('%.3f', math.ceil((now + delay) * 1000) / 1000)
end
