-- Store the record of a failed job. The caller deletes the job itself, in the same transaction.
-- KEYS failed, failed_at, those of effects
-- ARGV id, record (one line of JSON), raw payload, maximum of records ('' for any number), seconds to keep them, maximum of
--      their bytes, effects
local time = redis.call('TIME')
effects(TRY, 3, 7)
bury(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], time[1] + time[2] / 1000000, ARGV[4], ARGV[5], ARGV[6])
effects(DO, 3, 7)
return 1
