-- Ask for the end of a job that runs: the keeper of its worker reads it with its next beat.
-- KEYS reserved, owners, cancelled jobs   ARGV owner, mark of the reservation without its count
-- Returns 1, or 0 when that reservation is over. What nobody takes is kept for a day.
local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held or not string.find(held, '"rsv":"' .. ARGV[2] .. '.', 1, true) then return 0 end
if not redis.call('ZSCORE', KEYS[1], held) then return 0 end
redis.call('HSET', KEYS[3], ARGV[2], redis.call('TIME')[1])
redis.call('EXPIRE', KEYS[3], 86400)
return 1
