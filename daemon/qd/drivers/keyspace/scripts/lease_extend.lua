-- Extend a lease to `ms` from now, if the owner still has it.
-- KEYS lease (string: its owner)   ARGV owner, ms
-- Returns 1, or 0 if another owner has it, or none.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
