-- Copy records from elsewhere into the failed store, each once; no older record is deleted for them.
-- KEYS failed, failed_at   ARGV for each (at most 100): id, record (one line of JSON), raw payload
redis.call('ZREM', KEYS[2], '') -- the first write deletes: see turn.lua
local time = redis.call('TIME')
for at = 1, #ARGV, 3 do
  if redis.call('HEXISTS', KEYS[1], ARGV[at]) == 0 then
    bury(KEYS[1], KEYS[2], ARGV[at], ARGV[at + 1], ARGV[at + 2], time[1] + time[2] / 1000000, 2 ^ 53, 2 ^ 31, 2 ^ 53)
  end
end
return #ARGV / 3
