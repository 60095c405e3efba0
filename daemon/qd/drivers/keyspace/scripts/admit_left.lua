-- How many places of a window are taken: by starts within it, and by owners that have a turn.
-- KEYS starts, turns, due (see admit.lua)   ARGV us of the window, us it is delayed at most
-- Returns their number.
local now = clock_us()
follow_clock(KEYS, now, tonumber(ARGV[2]))
local started = #redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now - tonumber(ARGV[1])), '+inf')
return started + redis.call('ZCARD', KEYS[2])
