-- The entries of a stream after a number, and perhaps some before it.
-- KEYS stream   ARGV number
local last = redis.call('LINDEX', KEYS[1], -1)
local more = last and tonumber(string.match(last, '^%d+')) - ARGV[1] or 0
if more <= 0 then return {} end
return redis.call('LRANGE', KEYS[1], string.format('%.0f', -more), -1)
