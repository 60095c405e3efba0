-- Append events of an attempt to the stream of its job, and delete the oldest ones beyond its bounds.
-- KEYS stream (a list)
-- ARGV attempt, number before its first event (-1: unknown), seconds to keep, most events, most bytes,
--      then for each event: its position in the attempt (1 is the first), JSON
-- An entry is `number bytes at attempt position json`. bytes: of the JSON of all events up to this one; at: unix seconds.
-- The number of an event is `base` plus its position. What a call whose reply was lost has appended is not appended again.
-- Returns the base.
local attempt, base, entries = ARGV[1], tonumber(ARGV[2]), {}
local ENTRY = '^(%d+) (%d+) (%d+)%.%d+ (%S+) (%d+) ()'
redis.call('LTRIM', KEYS[1], (#ARGV - 5) / 2 - ARGV[4], -1) -- the first write deletes: see turn.lua
local time = redis.call('TIME')
local last, bytes, at, by, done = redis.call('LINDEX', KEYS[1], -1), 0, 0, nil, 0
if last then
  last, bytes, at, by, done = string.match(last, ENTRY)
  if by == attempt then
    base, done = last - done, tonumber(done)
  else
    base, done = math.max(base, last - ARGV[6] + 1), 0
  end
end
base = math.max(base, 0)
local between = ' ' .. time[1] .. '.' .. string.sub('00000' .. time[2], -6) .. ' ' .. attempt .. ' '
for i = 6, #ARGV, 2 do
  if tonumber(ARGV[i]) > done then
    bytes = bytes + #ARGV[i + 1]
    entries[#entries + 1] = base + ARGV[i] .. ' ' .. bytes .. between .. ARGV[i] .. ' ' .. ARGV[i + 1]
  end
end
if #entries > 0 then redis.call('RPUSH', KEYS[1], unpack(entries)) end
local over = tonumber(bytes) > tonumber(ARGV[5])
while over do
  local first = redis.call('LINDEX', KEYS[1], 0)
  local _, before, _, _, _, start = string.match(first, ENTRY)
  over = bytes - before + #first - start + 1 > tonumber(ARGV[5])
  if over then redis.call('LPOP', KEYS[1]) end
end
if time[1] - at > 60 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return tostring(base)
