-- Count jobs of a batch and put them aside for the caller to send: batch_add on a cluster. In front: due, batch.
-- KEYS batch, pending, failed
-- ARGV as `open` and the fields of batch_add, then for each job: uuid, delay in seconds, queue, payload
-- Returns {1, other jobs to send: name, delay, queue, payload ...}, or {0}, {-1} as batch_add.
local open, fields = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(redis.call('TIME')[1])
local at = 3 + 2 * fields
if fields == 0 then
  if redis.call('EXISTS', KEYS[1]) == 0 then return {0} end
  if redis.call('HGET', KEYS[1], 'finished_at') then return {-1} end
end
redis.call('HLEN', KEYS[1]) -- as in batch_add
redis.call('SCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[1] .. ':ends')
if fields > 0 then redis.call('HSET', KEYS[1], 'created_at', now, unpack(ARGV, 3, at - 1)) end
if open ~= 0 then redis.call('HINCRBY', KEYS[1], 'open', open) end
local added = 0
for i = at, #ARGV, 4 do
  set_aside(KEYS[1], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], now)
  added = added + redis.call('SADD', KEYS[2], ARGV[i])
end
redis.call('HINCRBY', KEYS[1], 'total', added)
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], UNFINISHED) end
local before = fresh
fresh = {}
settle(KEYS[1], KEYS[2], KEYS[3], APART, now)
return {1, unpack(aside(KEYS[1], KEYS[2], before))}
