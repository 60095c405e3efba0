-- How far a running job is, in the record of its end to be.
-- KEYS record   ARGV percent, seconds to keep it
redis.call('HDEL', KEYS[1], '') -- the first write takes something away: see turn.lua
redis.call('HSET', KEYS[1], 'progress', ARGV[1])
redis.call('EXPIRE', KEYS[1], math.max(1, math.ceil(tonumber(ARGV[2]))))
return 1
