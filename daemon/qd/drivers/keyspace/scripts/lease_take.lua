-- Take a free lease for `ms` from now. If the owner already has it, extend it.
-- KEYS lease (string: its owner)   ARGV owner, ms
-- Returns the present owner: this one, or another.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return ARGV[1] end
local owner = redis.call('GET', KEYS[1])
if owner == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return owner
