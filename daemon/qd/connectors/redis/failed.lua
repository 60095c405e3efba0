-- The failed store, put in front of the scripts that bury: a hash id -> record, newline, raw payload; and its index.
-- Bounded by age and by number; a call takes away at most 100 of the oldest, so it stays short and still wins.
-- What only looks comes first, and a write that adds nothing: when one of them is refused, no record was added.
local function bury(failed, failed_at, id, record, raw, now, most, seconds)
  local old = redis.call('ZRANGEBYSCORE', failed_at, '-inf', now - tonumber(seconds), 'LIMIT', 0, 100)
  local over = redis.call('ZCARD', failed_at) + 1 - tonumber(most)
  if #old == 0 and over > 0 then old = redis.call('ZRANGE', failed_at, 0, math.min(over, 100) - 1) end
  redis.call('ZADD', failed_at, 'XX', now, '')
  redis.call('HSET', failed, id, record .. '\n' .. raw)
  redis.call('ZADD', failed_at, now, id)
  if #old > 0 then
    redis.call('HDEL', failed, unpack(old))
    redis.call('ZREM', failed_at, unpack(old))
  end
end
