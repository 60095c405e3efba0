-- Store the progress of a running job, in the record that its end will complete.
-- KEYS record   ARGV percent, seconds to keep it, details (JSON)
redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
redis.call('HSET', KEYS[1], 'progress', ARGV[1], 'details', ARGV[3])
redis.call('EXPIRE', KEYS[1], math.max(1, math.ceil(tonumber(ARGV[2]))))
return 1
