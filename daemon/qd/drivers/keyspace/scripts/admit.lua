-- A sliding window: at most N starts in any span of the window. An owner that may not start now gets a turn: the time at which
-- a place becomes free for it.
-- KEYS starts (zset: start -> us), turns (zset: owner -> us at which it may start), due (zset: owner -> us by which it asks)
-- ARGV owner, mark of this start, N, us of the window, us an owner may be late, us it is delayed at most,
--      us that it waits for its turn at most, -1: no limit
-- Returns {0, us of the start, 1}, or {ms to wait, us of its turn, 1: it has that turn, 0: that is too late}.
-- Only starts count: a turn is reserved for an owner that is on time, and no start exceeds the window.
-- Starts are kept for two windows of the longest one in recent use, which is the TTL of their key. So two limits with one name,
-- as during a deploy, do not delete each other's starts.
local now = clock_us()
local owner, most, window, late, longest = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
follow_clock(KEYS, now, longest)

local kept = math.max(2 * window, redis.call('PTTL', KEYS[1]) * 1000)
local function keep() redis.call('PEXPIRE', KEYS[1], text(math.ceil(kept / 1000))) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - kept))
keep()
local absent = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now - late), 'LIMIT', 0, 100)
if #absent > 0 then
  redis.call('ZREM', KEYS[2], unpack(absent))
  redis.call('ZREM', KEYS[3], unpack(absent))
end

-- The start that has to be a window away: the most-th before this one, counting starts and then the turns in front of this one.
local before = redis.call('ZRANK', KEYS[2], owner) or redis.call('ZCARD', KEYS[2])
local moment
if before >= most then
  moment = math.max(now, score_at(KEYS[2], before - most)) + window
else
  moment = math.max(now, (score_at(KEYS[1], before - most) or 0) + window)
end

if moment <= now then
  redis.call('ZREM', KEYS[2], owner)
  redis.call('ZREM', KEYS[3], owner)
  redis.call('ZADD', KEYS[1], text(now), ARGV[2] .. ' ' .. text(now))
  keep()
  return {0, now, 1}
end
local patience = tonumber(ARGV[7])
if patience >= 0 and moment > now + patience then
  redis.call('ZREM', KEYS[2], owner)
  redis.call('ZREM', KEYS[3], owner)
  return {math.ceil((moment - now) / 1000), moment, 0}
end
local ask = math.min(moment, now + longest)
redis.call('ZADD', KEYS[2], text(moment), owner)
redis.call('ZADD', KEYS[3], text(ask), owner)
local last = math.max(score_at(KEYS[2], -1), score_at(KEYS[3], -1))
for i = 2, 3 do redis.call('PEXPIRE', KEYS[i], text(math.ceil((last - now + late) / 1000))) end
return {math.ceil((ask - now) / 1000), moment, 1}
