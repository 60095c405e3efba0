-- Pass a lease to the next owner, for `ms` from now. A repeated call is harmless.
-- KEYS lease (string: its owner)   ARGV owner, next owner, ms
-- Returns 1, or 0 if neither of them has it.
local owner = redis.call('GET', KEYS[1])
if owner ~= ARGV[1] and owner ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
