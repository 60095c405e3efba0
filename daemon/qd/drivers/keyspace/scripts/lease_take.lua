-- Take a lease that nobody has. Whoever has it already has it for so long from now on.
-- KEYS lease (string: its owner)   ARGV owner, ms   Returns who has it now: the owner, or another.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return ARGV[1] end
local owner = redis.call('GET', KEYS[1])
if owner == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return owner
