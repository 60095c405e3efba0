-- How many places of a window are taken, by those who have started and those who have their turn. Changes nothing.
-- KEYS starts, turns (see admit.lua)   ARGV us of the window
local time = redis.call('TIME')
local from = tonumber(time[1]) * 1000000 + tonumber(time[2]) - tonumber(ARGV[1])
local old = #redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', from))
return redis.call('ZCARD', KEYS[1]) - old + redis.call('ZCARD', KEYS[2])
