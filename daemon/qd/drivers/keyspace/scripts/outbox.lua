-- The next jobs of an outbox to send, in order: those that are due and were not cancelled or moved. They move to `sending`, and
-- stay there until their sender reports that it has sent them. If the sender dies, the next one sends them.
-- KEYS ready, delayed, notify, keyed, sending, sender, paused, resent
-- ARGV 1 sender   2 ms it may take to send them   3 how many of its last jobs were sent   4 maximum of jobs
--      5 maximum of bytes   6 prefix of the names of locks   7... digests of the jobs that were sent
-- Returns {1 if a sender that died may have sent them before, else 0, payload ...}. Without payloads there is nothing to send,
-- or another sender is active; then this sender is done.
local ready, delayed, sending, sender = KEYS[1], KEYS[2], KEYS[5], KEYS[6]
local mine = redis.call('GET', sender) == ARGV[1]
if mine then
  redis.call('LTRIM', sending, ARGV[3], -1)
  if redis.call('EXISTS', KEYS[8]) == 1 then came_through(KEYS[8], 7) end
elseif redis.call('EXISTS', sender) == 1 then
  return {0}
end
local left = redis.call('LLEN', sending) > 0 and 1 or 0

local function clock()
  local time = redis.call('TIME')
  return string.format('%.6f', time[1] + time[2] / 1000000)
end

local due = {}
if redis.call('EXISTS', KEYS[7]) == 0 then
  due = redis.call('ZRANGEBYSCORE', delayed, '-inf', clock(), 'LIMIT', 0, ARGV[4])
  if #due > 0 then
    redis.call('RPUSH', ready, unpack(due))
    redis.call('ZREMRANGEBYRANK', delayed, 0, #due - 1)
  end
  local size, seen = 0, redis.call('LLEN', sending)
  while seen == 0 or size > 0 and seen < tonumber(ARGV[4]) and size < tonumber(ARGV[5]) do
    local p = redis.call('LINDEX', ready, 0)
    if not p then break end
    local q, once = p, nil
    if may_be_tied(p) then q, once = taken(p, KEYS[4], ARGV[6]) end
    if q then
      redis.call('RPUSH', sending, q)
      seen, size = seen + 1, size + #q
    end
    redis.call('LPOP', ready)
    redis.call('LPOP', KEYS[3])
    if q and q ~= p then once() end
  end
end
local found = redis.call('LRANGE', sending, 0, ARGV[4] - 1)
if #found > 0 then
  redis.call('SET', sender, ARGV[1], 'PX', ARGV[2])
elseif mine then
  redis.call('EXPIRE', sender, 0)
end
return {left, unpack(found)}
