-- Delete a string and return it, as GETDEL does: operators need no further right, and databases can do it, too.
-- KEYS its name
local value = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return value
