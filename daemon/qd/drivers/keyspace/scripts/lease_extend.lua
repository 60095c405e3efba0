-- Hold a lease for so long from now on, when it is still the owner's: compared and extended in one step.
-- KEYS lease   ARGV owner, ms   Returns 1, or 0 when it is another's, or nobody's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
