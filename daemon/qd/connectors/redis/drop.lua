-- Take one waiting job away, by its exact bytes, and do what its end does to others.
-- KEYS ready or delayed, notify, those of effects
-- ARGV which of them ("ready", "delayed"), payload, effects
-- Returns 1, or 0 when it does not stand there any more: then nothing is changed.
effects(TRY, 3, 3)
local gone
if ARGV[1] == 'ready' then
  gone = redis.call('LREM', KEYS[1], -1, ARGV[2])
  if gone == 1 then redis.call('LPOP', KEYS[2]) end
else
  gone = redis.call('ZREM', KEYS[1], ARGV[2])
end
if gone == 1 then effects(DO, 3, 3) end
return gone
