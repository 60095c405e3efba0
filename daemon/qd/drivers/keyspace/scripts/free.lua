-- Free a lock, when it is still the owner's.   KEYS lock   ARGV owner   Returns 1, or 0 when it was not
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('EXPIRE', KEYS[1], 0)
return 1
