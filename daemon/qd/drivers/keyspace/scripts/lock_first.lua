-- On a cluster, before a unique job is sent: take its lock for `ms`. A repeated call does not extend it.
-- KEYS lock (string: its owner)   ARGV owner, ms
-- Returns {present owner, 1 if this call took the lock, else 0}.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {ARGV[1], 1} end
return {redis.call('GET', KEYS[1]) or '', 0}
