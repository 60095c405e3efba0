-- The notes of these jobs are gone: who read one before sends nothing any more in a while. See once.lua.
-- KEYS seen   ARGV seconds, ids
local until_when = string.format('%.3f', clock() + ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_when, ARGV[i]) end
return #ARGV - 1
