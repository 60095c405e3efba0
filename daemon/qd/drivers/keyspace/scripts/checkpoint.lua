-- Let the job in hand stand as another text: same lease, same mark, same owner.
-- KEYS reserved, owners
-- ARGV owner, payload as reserved, payload as it stands from now on
-- Returns 1, or 0 when the lease was lost, or when another text of this job stands there: then nothing is changed.
-- What may be refused comes first, and the first write takes something away: see release.lua. Owner and lease are written
-- before the old text goes, so that no stop in between leaves the job unowned or unleased.
local owner, old, new = ARGV[1], ARGV[2], ARGV[3]
redis.call('ZREM', KEYS[1], '')
local lease = redis.call('ZSCORE', KEYS[1], old)
if not lease then return 0 end
if old == new then return 1 end
redis.call('HSET', KEYS[2], owner, old)
redis.call('ZADD', KEYS[1], lease, new)
redis.call('HSET', KEYS[2], owner, new)
redis.call('ZREM', KEYS[1], old)
return 1
