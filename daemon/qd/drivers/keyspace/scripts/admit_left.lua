-- How many places of a window are taken, by those who have started and those who have their turn.
-- KEYS starts, turns, due (see admit.lua)   ARGV us of the window, us an owner is sent away for at most
local now = clock_us()
follow_clock(KEYS, now, tonumber(ARGV[2]))
local started = #redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now - tonumber(ARGV[1])), '+inf')
return started + redis.call('ZCARD', KEYS[2])
