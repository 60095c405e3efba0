-- A sender that could not send all of it says how much it did, and leaves the rest to the next.
-- KEYS sending, sender   ARGV who sends, of what it was given last, how many were sent
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[1], ARGV[2], -1)
redis.call('EXPIRE', KEYS[2], 0)
return 1
