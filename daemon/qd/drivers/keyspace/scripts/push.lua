-- Append payloads to the ready jobs, with a token each.
-- KEYS ready, notify   ARGV payloads (at most 1,000)
-- Returns their number.
local tokens = {}
for i = 1, #ARGV do tokens[i] = '1' end
redis.call('RPUSH', KEYS[2], unpack(tokens)) -- first: if it is refused, nothing was pushed
redis.call('RPUSH', KEYS[1], unpack(ARGV))
return #ARGV
