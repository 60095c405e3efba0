-- Make payloads ready later.
-- KEYS delayed, notify   ARGV for each job (at most 1,000): delay in seconds, payload
-- Returns their number.
-- A delay under a second adds a token: a worker that waits checks again and shortens its wait.
local now = clock()
local soon = false

-- A payload sent twice is two jobs, but a sorted set holds equal members once. If an equal payload is already delayed, white
-- space goes behind this one: any JSON parser skips it, PHP's and cjson included. It is the time in microseconds, written
-- in base 4; each use counts on, so a thousand equal payloads in one call need two writes each.
local SPACES, unused = {'\t', '\n', '\r', ' '}, math.floor(now * 1000000)
local function add(due, payload)
  local member = payload
  while redis.call('ZADD', KEYS[1], 'NX', due, member) == 0 do
    local rest, space = unused, ''
    while rest > 0 do
      space, rest = SPACES[rest % 4 + 1] .. space, math.floor(rest / 4)
    end
    member, unused = payload .. space, unused + 1
  end
end

for i = 1, #ARGV, 2 do
  local delay = tonumber(ARGV[i])
  add(due_after(now, delay), ARGV[i + 1])
  soon = soon or delay < 1
end
if soon then redis.call('RPUSH', KEYS[2], '1') end
return #ARGV / 2
