-- Send a job, and note its effects in another slot. In front: due, batch. See cluster/keyspace.py, unique.
-- KEYS ready, delayed, notify, ends   ARGV payload, delay in seconds, id of the note, its text
-- The first write adds: a server at its maxmemory refuses the whole script.
redis.call('LLEN', KEYS[1]) -- a key of another type, or no right to it: refused before anything is added
redis.call('ZCARD', KEYS[2])
redis.call('LLEN', KEYS[3])
redis.call('HSET', KEYS[4], ARGV[3], string.format('%.3f ', clock()) .. ARGV[4])
push_one(KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2]))
return 1
