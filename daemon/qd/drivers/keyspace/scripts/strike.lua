-- Count an error; if there are too many within the window, all jobs of this kind rest.
-- KEYS errors (zset: error -> us), rest (hash that expires at the end of the rest)
-- ARGV mark of this error, how many are too many, us of the window, ms of the rest
-- Returns 1 if this error began a rest.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local window = tonumber(ARGV[3])
local function text(number) return string.format('%.0f', number) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - window))
if redis.call('ZCARD', KEYS[1]) + 1 < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], text(now), ARGV[1] .. ' ' .. text(now))
  redis.call('PEXPIRE', KEYS[1], text(math.ceil(window / 1000)))
  return 0
end
redis.call('HSET', KEYS[2], 'by', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '+inf')
return 1
