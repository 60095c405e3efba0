-- Set fields of a hash.
-- KEYS hash   ARGV for each: field, value
for at = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
