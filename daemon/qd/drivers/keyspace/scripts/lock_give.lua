-- Free a lock, if the owner still has it, and give it to the first waiter in line; leave the line.
-- KEYS lock, line, seen (see line.lua)
-- ARGV owner, ms within which a waiter that is given the lock must call
-- Returns {1, the waiter that was given the lock or ''}, or {0, ''} if the owner did not have it.
local owner = ARGV[1]
redis.call('ZREM', KEYS[2], owner)
redis.call('ZREM', KEYS[3], owner)
if redis.call('GET', KEYS[1]) ~= owner then return {0, ''} end
local first = first_in_line(KEYS[2], KEYS[3], clock_us())
redis.call('PEXPIRE', KEYS[1], 0)
if first then hand_over(KEYS[1], KEYS[2], KEYS[3], first, ARGV[2]) end
return {1, first or ''}
