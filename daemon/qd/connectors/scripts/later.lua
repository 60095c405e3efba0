-- Make payloads ready later.
-- KEYS delayed, notify   ARGV delay in seconds, payload, delay, payload ... (at most 1,000 pairs)
-- A delay under a second adds a token: a worker that waits looks again and shortens its wait.
local now = clock()
local soon = false
for i = 1, #ARGV, 2 do
  local delay = tonumber(ARGV[i])
  redis.call('ZADD', KEYS[1], due_after(now, delay), ARGV[i + 1])
  soon = soon or delay < 1
end
if soon then redis.call('RPUSH', KEYS[2], '1') end
return #ARGV / 2
