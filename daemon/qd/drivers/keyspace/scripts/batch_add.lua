-- Send and count jobs of a batch in one step; the first call creates the batch.
-- KEYS batch, pending, failed, and three per queue: ready, delayed, notify
-- ARGV prefix; 1 in the first of several calls that create a batch, -1 in the last, else 0; number of the batch's fields (0:
-- the batch exists) and the fields; then for each job: number of its queue, uuid, delay in seconds, payload
-- Returns 1; 0 if there is no such batch, -1 if it is finished: then nothing is sent. A batch that stays open, because its
-- sender died before the last call, sends no callbacks and expires.
local prefix, open, fields = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(redis.call('TIME')[1])
local at = 4 + 2 * fields
if fields == 0 then
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  if redis.call('HGET', KEYS[1], 'finished_at') then return -1 end
end
for i = 4, #KEYS, 3 do -- a key of another type, or no right to it: refused before anything is added
  redis.call('LLEN', KEYS[i])
  redis.call('ZCARD', KEYS[i + 1])
  redis.call('LLEN', KEYS[i + 2])
end
if fields > 0 then
  redis.call('HSET', KEYS[1], 'created_at', now, unpack(ARGV, 4, at - 1))
end
if open ~= 0 then redis.call('HINCRBY', KEYS[1], 'open', open) end
local count = 0
for i = at, #ARGV, 4 do
  count = count + redis.call('SADD', KEYS[2], ARGV[i + 1])
  local k = 1 + 3 * tonumber(ARGV[i])
  push_one(KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[i + 3], tonumber(ARGV[i + 2]))
end
redis.call('HINCRBY', KEYS[1], 'total', count)
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], UNFINISHED) end
settle(KEYS[1], KEYS[2], KEYS[3], prefix, now)
return 1
