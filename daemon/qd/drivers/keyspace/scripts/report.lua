-- Store a master's report, with this server's time in it. In front: due.
-- KEYS masters   ARGV token, report (JSON)
redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
redis.call('HSET', KEYS[1], ARGV[1], string.format('{"seen_at":%.3f,%s', clock(), string.sub(ARGV[2], 2)))
return 1
