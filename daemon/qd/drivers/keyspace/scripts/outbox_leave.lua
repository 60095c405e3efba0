-- A sender stops, because its time is over or the broker has refused a job: remove what it has sent, and leave the rest to the
-- next sender.
-- KEYS sending, sender, resent   ARGV sender, how many of its last jobs were sent, digests of these
-- Returns 1, or 0 if another process sends now, or none: then nothing is changed.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[1], ARGV[2], -1)
if #ARGV > 2 and redis.call('EXISTS', KEYS[3]) == 1 then came_through(KEYS[3], 3) end
redis.call('EXPIRE', KEYS[2], 0)
return 1
