-- Give a lock back, when it is still the owner's, to the first one in line or to nobody; and leave the line.
-- KEYS lock, line, seen (see line.lua)
-- ARGV owner, ms that one who is handed the lock has to come and get it
-- Returns {1, who was handed it or ''}, or {0, ''}: it was another's, or nobody's, and stays so.
local owner = ARGV[1]
redis.call('ZREM', KEYS[2], owner)
redis.call('ZREM', KEYS[3], owner)
if redis.call('GET', KEYS[1]) ~= owner then return {0, ''} end
local first = first_in_line(KEYS[2], KEYS[3], clock_us())
redis.call('PEXPIRE', KEYS[1], 0)
if first then hand_over(KEYS[1], KEYS[2], KEYS[3], first, ARGV[2]) end
return {1, first or ''}
