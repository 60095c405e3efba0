-- Take one of the places under a name. An owner that already has a place, from an attempt that died, keeps it.
-- KEYS places, record of the owner (see places.lua); no record: it is in another slot of a cluster
-- ARGV owner, holder, number of places, ms to hold it at most, the places' name in the record
-- Returns 0 if the owner has a place, else the ms until the first place expires.
for i = 1, #KEYS do redis.call('HDEL', KEYS[i], '') end -- the first write deletes: see turn.lua
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local owner, most, span = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local places, taken, first, last = redis.call('HGETALL', KEYS[1]), 0, nil, now + span
for i = 1, #places, 2 do
  local ends = tonumber(string.match(places[i + 1], '^%d+')) or 0
  if ends <= now then
    redis.call('HDEL', KEYS[1], places[i])
  elseif places[i] ~= owner then
    taken = taken + 1
    first, last = math.min(first or ends, ends), math.max(last, ends)
  end
end
if taken >= most then return first - now end
redis.call('HSET', KEYS[1], owner, string.format('%.0f %s', now + span, ARGV[2]))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', last - now))
if KEYS[2] then note_place(KEYS[2], ARGV[5], ARGV[2], now, span) end
return 0
