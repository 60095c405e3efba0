-- Make payloads ready later, by this server's clock, exact to the millisecond and never early.
-- KEYS delayed, notify   ARGV delay in seconds, payload, delay, payload ... (at most 1,000 pairs)
-- A delay under a second adds a token: a worker that waits looks again and shortens its wait.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local soon = false
for i = 1, #ARGV, 2 do
  local delay = tonumber(ARGV[i])
  redis.call('ZADD', KEYS[1], string.format('%.3f', math.ceil((now + delay) * 1000) / 1000), ARGV[i + 1])
  soon = soon or delay < 1
end
if soon then redis.call('RPUSH', KEYS[2], '1') end
return #ARGV / 2
