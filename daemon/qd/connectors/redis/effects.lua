-- What the end of a job does beside taking it away, put in front of ack, release and bury: they do it when the job is still
-- the worker's, and at no other time. KEYS from k on and ARGV from a on, a word each and then
--   push   KEYS ready, delayed, notify    ARGV payload, delay in seconds
--   free   KEYS lock                      ARGV owner
--   unkey  KEYS keyed                     ARGV key, id
--   keep   KEYS record                    ARGV id, status, value, seconds
-- What may be refused comes before what adds, of all of them: a script that stops after it has added would add again at
-- each try. So each is tried with writes that change nothing (see TRY), before the first of them is done.
local KEY, ARG, TRY, DO = 1, 2, 3, 4
local kinds = {
  push = {3, 2, function(k, a)
    redis.call('LTRIM', KEYS[k], 0, -1)
    redis.call('ZREM', KEYS[k + 1], '')
    redis.call('LTRIM', KEYS[k + 2], 0, -1)
  end, function(k, a)
    local delay = tonumber(ARGV[a + 1])
    if delay < 1 then redis.call('RPUSH', KEYS[k + 2], '1') end
    if delay > 0 then
      local time = redis.call('TIME')
      local now = time[1] + time[2] / 1000000
      redis.call('ZADD', KEYS[k + 1], string.format('%.3f', math.ceil((now + delay) * 1000) / 1000), ARGV[a])
    else
      redis.call('RPUSH', KEYS[k], ARGV[a])
    end
  end},
  free = {1, 1, function(k, a) redis.call('GET', KEYS[k]) end, function(k, a)
    if redis.call('GET', KEYS[k]) == ARGV[a] then redis.call('EXPIRE', KEYS[k], 0) end -- gone, and no right to DEL is needed
  end},
  unkey = {1, 2, function(k, a) redis.call('HDEL', KEYS[k], '') end, function(k, a)
    local entry = redis.call('HGET', KEYS[k], ARGV[a])
    if entry and keyed_by(entry, ARGV[a + 1]) then redis.call('HDEL', KEYS[k], ARGV[a]) end
  end},
  keep = {1, 4, function(k, a) redis.call('HDEL', KEYS[k], '') end, function(k, a)
    keep(KEYS[k], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
  end},
}

local function effects(part, k, a)
  while ARGV[a] do
    local kind = kinds[ARGV[a]]
    kind[part](k, a + 1)
    k, a = k + kind[KEY], a + 1 + kind[ARG]
  end
end
