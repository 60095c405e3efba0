-- Take a lock, or wait in line for it. A free lock goes to the first waiter in line, whichever process calls.
-- KEYS lock (string: its owner), fence (string: the last token), line, seen (see line.lua)
-- ARGV owner, ms to hold it, 1: wait in line, us at which it came (0: now), us for which it counts as alive, ms within which a
--      waiter that is given the lock must call, ms that the last token is kept
-- Returns {token}; or {0, ms until the lock expires (-1: never), us at which it came, number of waiters in front, owner of the
-- lock, waiter that was given the lock now or ''}.
-- Each token is larger than the last: the clock in microseconds, or the last token plus one.
local owner, now = ARGV[1], clock_us()
local has, handed = redis.call('GET', KEYS[1]), ''
local first
redis.call('PEXPIRE', KEYS[3], ARGV[7])

if not has then
  first = first_in_line(KEYS[3], KEYS[4], now)
  local came = tonumber(ARGV[4])
  if first and first ~= owner and came > 0 and came < tonumber(redis.call('ZSCORE', KEYS[3], first)) then
    first = owner -- it came before, and had counted as dead for a moment
  end
  if not first or first == owner then
    has = owner
  else
    hand_over(KEYS[1], KEYS[3], KEYS[4], first, ARGV[6])
    has, handed = first, first
  end
end

if has == owner then
  if first then
    redis.call('ZREM', KEYS[3], owner)
    redis.call('ZREM', KEYS[4], owner)
  end
  local token = math.max(now, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
  redis.call('SET', KEYS[2], text(token), 'PX', text(tonumber(ARGV[7]) + tonumber(ARGV[2])))
  redis.call('SET', KEYS[1], owner, 'PX', ARGV[2])
  return {text(token)}
end

local came, front = tonumber(ARGV[4]), 0
if ARGV[3] == '1' then
  if came == 0 then
    local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')
    came = math.max(now, tonumber(last[2] or '0') + 1)
  end
  redis.call('ZADD', KEYS[3], text(came), owner)
  redis.call('ZADD', KEYS[4], text(now + tonumber(ARGV[5])), owner)
  for i = 3, 4 do redis.call('PEXPIRE', KEYS[i], ARGV[7]) end
  front = redis.call('ZRANK', KEYS[3], owner)
else
  redis.call('ZREM', KEYS[3], owner)
  redis.call('ZREM', KEYS[4], owner)
end
return {'0', redis.call('PTTL', KEYS[1]), text(came), front, has, handed}
