-- A sender that goes, or could not send all of it, says how much it did, and leaves the rest to the next.
-- KEYS sending, sender, resent   ARGV who sends, of what it was given last, how many were sent, digests of those
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[1], ARGV[2], -1)
if #ARGV > 2 and redis.call('EXISTS', KEYS[3]) == 1 then came_through(KEYS[3], 3) end
redis.call('EXPIRE', KEYS[2], 0)
return 1
