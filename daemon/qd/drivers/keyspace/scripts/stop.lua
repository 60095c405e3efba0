-- Cancel a running job: the keeper of its worker reads the entry with its next beat.
-- KEYS reserved, owners, cancelled jobs   ARGV owner, mark of the reservation without its count
-- Returns 1, or 0 if that reservation has ended. An entry that no keeper reads is kept for a day.
local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held or not string.find(held, '"rsv":"' .. ARGV[2] .. '.', 1, true) then return 0 end
if not redis.call('ZSCORE', KEYS[1], held) then return 0 end
redis.call('HSET', KEYS[3], ARGV[2], redis.call('TIME')[1])
redis.call('EXPIRE', KEYS[3], 86400)
return 1
