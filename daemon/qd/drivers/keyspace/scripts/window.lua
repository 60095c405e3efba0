-- The first part of admit and admit_left: the clock, and a correction for a clock that was set back. For the keys see
-- admit.lua.
local function text(number) return string.format('%.0f', number) end

local function clock_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The score of that rank, or nil.
local function score_at(key, rank) return tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2]) end

-- No start is in the future, and no owner waits for longer than `longest`. If the keys contain later times, the clock was set
-- back by at least the difference, and all times move with it: else no job could start until the clock catches up.
local function follow_clock(keys, now, longest)
  local back = math.max(0, (score_at(keys[1], -1) or 0) - now, (score_at(keys[3], -1) or 0) - longest - now)
  if back == 0 then return end
  for _, key in ipairs(keys) do
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do redis.call('ZADD', key, text(all[i + 1] - back), all[i]) end
    local left = redis.call('PTTL', key) - math.floor(back / 1000)
    if left > 0 then redis.call('PEXPIRE', key, text(left)) end
  end
end
