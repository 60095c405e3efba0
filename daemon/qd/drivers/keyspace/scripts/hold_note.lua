-- On a cluster, before hold.lua takes a place in another slot: note it in the owner's record.
-- KEYS record   ARGV place, holder, ms to hold it at most
redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
local time = redis.call('TIME')
note_place(KEYS[1], ARGV[1], ARGV[2], tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), tonumber(ARGV[3]))
return 1
