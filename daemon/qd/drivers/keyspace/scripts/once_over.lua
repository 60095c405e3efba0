-- The notes of these jobs are deleted. A process that has read a note before may still send its job, so the ids are remembered
-- for a while. See once.lua.
-- KEYS seen   ARGV seconds to remember them, ids
-- Returns the number of ids.
local now = clock()
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', string.format('%.3f', now + ARGV[1]), ARGV[i]) end
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then redis.call('EXPIRE', KEYS[1], math.max(1, math.ceil(last - now))) end
return #ARGV - 1
