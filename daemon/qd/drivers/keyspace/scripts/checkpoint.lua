-- Replace the text of a reserved job: same lease, same mark, same owner.
-- KEYS reserved, owners
-- ARGV owner, payload as reserved, new payload
-- Returns 1, or 0 if the lease was lost, or if the job is stored with another text: then nothing is changed.
-- For the order of the writes see release.lua. Owner and lease are written before the old text is deleted, so that a stop in
-- between leaves the job owned and leased.
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
