-- Give a place back, if it is still held as it was taken: see hold.lua.
-- KEYS places   ARGV owner, holder   Returns 1, or 0 when another has it by now, or nobody.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held or string.match(held, '^%d+ (.*)$') ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
