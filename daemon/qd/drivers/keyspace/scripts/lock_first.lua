-- Take the lock of a job that is about to be sent, for so long; once more does not make it longer.
-- KEYS lock   ARGV owner, ms   Returns {who has it, 1 when it was taken by this call}
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {ARGV[1], 1} end
return {redis.call('GET', KEYS[1]) or '', 0}
