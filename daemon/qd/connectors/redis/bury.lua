-- Move a reserved job into the failed store, in one step, and keep the store within its bounds.
-- KEYS reserved, owners, failed, failed_at
-- ARGV owner, payload as reserved, id, record (one line of JSON), raw payload, most records, seconds to keep
-- Returns 1, or 0 when the lease was lost: then nothing is added.
local mine = redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2]
local held = redis.call('ZSCORE', KEYS[1], ARGV[2])
if held then
  local now = tonumber(redis.call('TIME')[1])
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4] .. '\n' .. ARGV[5])
  redis.call('ZADD', KEYS[4], now, ARGV[3])
  redis.call('ZREM', KEYS[1], ARGV[2])
  local old = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now - tonumber(ARGV[7]), 'LIMIT', 0, 100)
  local over = redis.call('ZCARD', KEYS[4]) - tonumber(ARGV[6])
  if #old == 0 and over > 0 then old = redis.call('ZRANGE', KEYS[4], 0, math.min(over, 100) - 1) end
  if #old > 0 then
    redis.call('HDEL', KEYS[3], unpack(old))
    redis.call('ZREM', KEYS[4], unpack(old))
  end
end
if mine then redis.call('HDEL', KEYS[2], ARGV[1]) end
return held and 1 or 0
