-- A master's report, with the time of this server in it.   KEYS masters   ARGV token, report (JSON)
redis.call('HSET', KEYS[1], ARGV[1], string.format('{"seen_at":%.3f,%s', clock(), string.sub(ARGV[2], 2)))
return 1
