-- Delete a string and return it: GETDEL, which the oldest supported servers do not have.
-- KEYS its name
local value = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return value
