-- Cancel a batch.
-- KEYS batch
-- Returns 1, or 0 if it was cancelled or finished before, or does not exist.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('HGET', KEYS[1], 'finished_at') or redis.call('HGET', KEYS[1], 'cancelled_at') then return 0 end
redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
return redis.call('HSET', KEYS[1], 'cancelled_at', redis.call('TIME')[1])
