-- Delete records of jobs that failed too long ago, the oldest first.
-- KEYS failed, failed_at   ARGV seconds that a record is kept, maximum number to delete
-- Returns how many were deleted, and how many were dropped to make room since the counter began (see failed.lua).
local time = redis.call('TIME')
local until_when = time[1] + time[2] / 1000000 - ARGV[1]
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '(0', until_when, 'LIMIT', 0, ARGV[2])
if #ids > 0 then unbury(KEYS[1], KEYS[2], ids, kept_bytes(KEYS[1], KEYS[2])) end
local dropped_at = redis.call('ZSCORE', KEYS[2], 'dropped_at')
if dropped_at and -tonumber(dropped_at) < until_when then redis.call('ZREM', KEYS[2], 'dropped', 'dropped_at') end
return {#ids, -tonumber(redis.call('ZSCORE', KEYS[2], 'dropped') or 0)}
