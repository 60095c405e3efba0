-- Delete one waiting job (also a suspect), by its exact bytes, and do the effects of its end.
-- KEYS ready or delayed, notify, keyed, those of effects
-- ARGV which of them ("ready", "delayed"), payload, the name it waits under and its issue ("": none), how many ready jobs are
--      behind it, effects
-- Returns 1, or 0 if it is no longer there: then nothing is changed.
effects(TRY, 4, 6)
local gone
if ARGV[1] == 'ready' then
  local nearer = 2 * tonumber(ARGV[5]) > redis.call('LLEN', KEYS[1]) and 1 or -1 -- from that end
  gone = redis.call('LREM', KEYS[1], nearer, ARGV[2])
  if gone == 0 then gone = redis.call('LREM', KEYS[1] .. ':suspects', 1, ARGV[2]) end
  if gone == 1 then redis.call('LPOP', KEYS[2]) end
else
  gone = redis.call('ZREM', KEYS[1], ARGV[2])
end
if gone == 0 then return 0 end
local entry = ARGV[3] ~= '' and redis.call('HGET', KEYS[3], ARGV[3])
if entry and string.match(entry, '^%S+') == ARGV[4] then redis.call('HDEL', KEYS[3], ARGV[3]) end
effects(DO, 4, 6)
return 1
