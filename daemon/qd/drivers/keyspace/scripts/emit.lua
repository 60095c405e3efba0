-- Append events of an attempt to the stream of its job, and delete the oldest ones beyond its bounds.
-- KEYS stream (a list)
-- ARGV attempt, number before its first event (-1: unknown), seconds to keep, most events, most bytes,
--      then for each event: its position in the attempt (1 is the first), JSON text
-- An entry is `number bytes at attempt position json`. bytes: the JSON of all events of the stream so far; at: unix seconds.
-- The number of an event is `base` plus its position. Events that a lost call has appended are not appended again.
-- Returns the base.
local attempt, base, most_bytes, json = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), '^(%d+) (%d+) [%d.]+ (%S+) (%d+) ()'
local room = tonumber(ARGV[4]) - (#ARGV - 5) / 2
redis.call('LTRIM', KEYS[1], string.format('%.0f', -room), -1) -- the first write deletes: see turn.lua
local time = redis.call('TIME')
local at = time[1] .. '.' .. string.sub('00000' .. time[2], -6)
local last, bytes, done, by, place = redis.call('LINDEX', KEYS[1], -1), 0, 0, nil, nil
if last then
  last, bytes, by, place = string.match(last, json)
  last, bytes = tonumber(last), tonumber(bytes)
  if by == attempt then
    done = tonumber(place)
    base = last - done
  else
    base = math.max(base, last - tonumber(ARGV[6]) + 1)
  end
end
base = math.max(base, 0)
local entries = {}
for i = 6, #ARGV, 2 do
  local position = tonumber(ARGV[i])
  if position > done then
    bytes = bytes + #ARGV[i + 1]
    entries[#entries + 1] = string.format('%.0f %.0f ', base + position, bytes) .. at .. ' ' .. attempt .. ' ' .. ARGV[i] .. ' ' .. ARGV[i + 1]
  end
end
if #entries > 0 then redis.call('RPUSH', KEYS[1], unpack(entries)) end
local most = bytes > most_bytes
while most do
  local first = redis.call('LINDEX', KEYS[1], 0)
  local _, before, _, _, start = string.match(first, json)
  most = bytes - before + #first - start + 1 > most_bytes
  if most then redis.call('LPOP', KEYS[1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return string.format('%.0f', base)
