-- The failed store, put in front of the scripts that write it: a hash id -> record, newline, raw payload; and its index,
-- whose member 'bytes' has as score, negative, how much all records are.

-- How much is kept, and whether the index says so. Where nobody has counted yet (records of an older version, or of another
-- hand) all are looked at, once.
local function kept_bytes(failed, failed_at)
  local bytes = redis.call('ZSCORE', failed_at, 'bytes')
  if bytes then return -tonumber(bytes), true end
  bytes = 0
  for _, id in ipairs(redis.call('ZRANGE', failed_at, 0, -1)) do bytes = bytes + redis.call('HSTRLEN', failed, id) end
  return bytes, false
end

-- Take these records away. bytes: how much is kept before.
local function unbury(failed, failed_at, ids, bytes)
  for _, id in ipairs(ids) do bytes = bytes - redis.call('HSTRLEN', failed, id) end
  redis.call('HDEL', failed, unpack(ids))
  redis.call('ZREM', failed_at, unpack(ids))
  redis.call('ZADD', failed_at, -math.max(0, bytes), 'bytes')
  if redis.call('ZCARD', failed_at) == 1 then redis.call('ZREM', failed_at, 'bytes') end
end

-- Bounded by number, age and bytes; a call takes away at most 100 of the oldest, so it stays short and still wins. The new
-- record stays, however large it is. most 0: nothing is kept.
-- What only looks comes first, and a write that adds nothing: when one of them is refused, no record was added.
local function bury(failed, failed_at, id, record, raw, now, most, seconds, most_bytes)
  most, seconds, most_bytes = tonumber(most), tonumber(seconds), tonumber(most_bytes)
  if most == 0 then return end
  local text = record .. '\n' .. raw
  local before, counted = kept_bytes(failed, failed_at)
  local bytes, over = before + #text, redis.call('ZCARD', failed_at) + (counted and 0 or 1) - most
  local first = redis.call('ZRANGEBYSCORE', failed_at, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local old = {}
  if first[1] and (over > 0 or bytes > most_bytes or tonumber(first[2]) <= now - seconds) then
    local left = bytes
    local oldest = redis.call('ZRANGEBYSCORE', failed_at, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
    for k = 1, #oldest, 2 do
      if #old >= over and left <= most_bytes and tonumber(oldest[k + 1]) > now - seconds then break end
      left = left - redis.call('HSTRLEN', failed, oldest[k])
      old[#old + 1] = oldest[k]
    end
  end
  redis.call('ZADD', failed_at, 'XX', now, '')
  redis.call('HSET', failed, id, text)
  redis.call('ZADD', failed_at, now, id, -bytes, 'bytes')
  if #old > 0 then unbury(failed, failed_at, old, bytes) end
end
