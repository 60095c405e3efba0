-- The failed store, put in front of the scripts that write it: a hash id -> record, newline, raw payload; and its index, a
-- sorted set by time. Three members of the index are counters, with negative scores:
--   bytes        size of all records
--   dropped      records deleted to make room for newer ones (not those deleted for their age)
--   dropped_at   unix seconds of the last such deletion; aged.lua deletes both counters once it is longer ago than `keep`

-- Size of the store. If the index has no count yet (records of an older version, or of another program), all records are
-- measured, once.
local function kept_bytes(failed, failed_at)
  local bytes = redis.call('ZSCORE', failed_at, 'bytes')
  if bytes then return -tonumber(bytes) end
  bytes = 0
  for _, id in ipairs(redis.call('ZRANGE', failed_at, 0, -1)) do bytes = bytes + redis.call('HSTRLEN', failed, id) end
  return bytes
end

-- Delete these records. bytes: size of the store before.
local function unbury(failed, failed_at, ids, bytes)
  for _, id in ipairs(ids) do bytes = bytes - redis.call('HSTRLEN', failed, id) end
  redis.call('HDEL', failed, unpack(ids))
  redis.call('ZREM', failed_at, unpack(ids))
  redis.call('ZADD', failed_at, -math.max(0, bytes), 'bytes')
  local first = redis.call('ZRANGEBYSCORE', failed_at, '(0', '+inf', 'LIMIT', 0, 1)
  if #first == 0 then redis.call('ZREM', failed_at, 'bytes') end
end

local function count_dropped(failed_at, count, now)
  local before = tonumber(redis.call('ZSCORE', failed_at, 'dropped') or 0)
  redis.call('ZADD', failed_at, before - count, 'dropped', string.format('%.3f', -now), 'dropped_at')
end

-- Limited by bytes, age and, if `most` is not '', number. A call deletes at most the 100 oldest records, so it is short and
-- still catches up. The new record stays, however large it is. most 0: nothing is kept.
-- Reads come first, and a write that adds nothing: if one of them is refused, no record was added.
local function bury(failed, failed_at, id, record, raw, now, most, seconds, most_bytes)
  most, seconds, most_bytes = tonumber(most), tonumber(seconds), tonumber(most_bytes)
  if most == 0 then return end
  local text = record .. '\n' .. raw
  local before = kept_bytes(failed, failed_at)
  local bytes, over = before + #text, most and redis.call('HLEN', failed) + 1 - most or 0
  local first = redis.call('ZRANGEBYSCORE', failed_at, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local old, dropped = {}, 0
  if first[1] and (over > 0 or bytes > most_bytes or tonumber(first[2]) <= now - seconds) then
    local left = bytes
    local oldest = redis.call('ZRANGEBYSCORE', failed_at, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
    for k = 1, #oldest, 2 do
      local in_time = tonumber(oldest[k + 1]) > now - seconds
      if #old >= over and left <= most_bytes and in_time then break end
      if in_time then dropped = dropped + 1 end
      left = left - redis.call('HSTRLEN', failed, oldest[k])
      old[#old + 1] = oldest[k]
    end
  end
  redis.call('ZADD', failed_at, 'XX', now, '')
  redis.call('HSET', failed, id, text)
  redis.call('ZADD', failed_at, now, id, -bytes, 'bytes')
  if #old > 0 then unbury(failed, failed_at, old, bytes) end
  if dropped > 0 then count_dropped(failed_at, dropped, now) end
end
