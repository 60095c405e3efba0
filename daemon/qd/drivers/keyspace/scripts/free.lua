-- Free a lock if the owner still has it.
-- KEYS lock (string: its owner)   ARGV owner
-- Returns 1, or 0 if it does not have it.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('EXPIRE', KEYS[1], 0)
return 1
