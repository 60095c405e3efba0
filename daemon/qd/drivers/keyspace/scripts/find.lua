-- Find payloads that contain the id of a job, in one piece of a queue per call. Changes nothing.
-- KEYS  a list (searched from its tail), a sorted set or a hash
-- ARGV  its kind ("list", "zset", "hash")   cursor, "0" at first   the id
-- Returns { next cursor ("0" at the end), then for each: payload or record, and its score, field, or number of jobs behind it }
-- A piece is a thousand payloads, or a megabyte. A list may change at its ends during the search without a job being missed:
-- positions count from the tail, and the last few of a piece are searched again in the next one.
local MOST, MUCH, STEP, AGAIN = 1000, 1048576, 50, 16
local kind, at, id = ARGV[1], ARGV[2], ARGV[3]
local seen, size, found = 0, 0, {}

local function check(text, position)
  seen, size = seen + 1, size + #text
  if string.find(text, id, 1, true) then found[#found + 1], found[#found + 2] = text, position end
end

if kind == 'list' then
  local from = tonumber(at)
  repeat
    local some = redis.call('LRANGE', KEYS[1], -from - seen - STEP, -from - seen - 1)
    for k = #some, 1, -1 do check(some[k], tostring(from + seen)) end
    at = #some == STEP and string.format('%.0f', from + seen - AGAIN) or '0'
  until at == '0' or seen >= MOST or size > MUCH
else
  repeat
    local answer = redis.call(kind == 'zset' and 'ZSCAN' or 'HSCAN', KEYS[1], at, 'COUNT', STEP)
    at = answer[1]
    for k = 1, #answer[2], 2 do
      if kind == 'zset' then check(answer[2][k], answer[2][k + 1]) else check(answer[2][k + 1], answer[2][k]) end
    end
  until at == '0' or seen >= MOST or size > MUCH
end
return {at, unpack(found)}
