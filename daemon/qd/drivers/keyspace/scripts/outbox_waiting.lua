-- Which outboxes have something to send.
-- KEYS three per queue: ready, delayed, sending
-- Returns the indexes of those queues (from 1).
local time = redis.call('TIME')
local now, found = time[1] + time[2] / 1000000, {}
for i = 1, #KEYS, 3 do
  local first = redis.call('ZRANGE', KEYS[i + 1], 0, 0, 'WITHSCORES')[2]
  if redis.call('LLEN', KEYS[i]) + redis.call('LLEN', KEYS[i + 2]) > 0 or first and tonumber(first) <= now then
    found[#found + 1] = (i + 2) / 3
  end
end
return found
