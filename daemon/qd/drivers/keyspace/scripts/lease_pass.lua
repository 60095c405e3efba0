-- Hand a lease on to another owner, who holds it for so long from now on; once more does no harm.
-- KEYS lease   ARGV owner, next owner, ms   Returns 1, or 0 when it is a third one's, or nobody's.
local owner = redis.call('GET', KEYS[1])
if owner ~= ARGV[1] and owner ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
