-- Delete records of the failed store.
-- KEYS failed, failed_at   ARGV ids (at most 100)
-- Returns how many were there.
local bytes, there = kept_bytes(KEYS[1], KEYS[2]), 0
for at = 1, #ARGV do there = there + redis.call('HEXISTS', KEYS[1], ARGV[at]) end
unbury(KEYS[1], KEYS[2], ARGV, bytes)
return there
