end

-- The last three KEYS are taken, holding, ended; the first of ARGV is the owner.
-- Returns 0 when the lease was lost, else the id and the handle of the parcel ('' when it has none).
-- What may be refused comes first: the job would be put back, and its parcel still be taken for one to run.
redis.call('HDEL', KEYS[#KEYS - 2], '')
redis.call('HDEL', KEYS[#KEYS - 1], '')
redis.call('ZREM', KEYS[#KEYS], '')
if answer() == 0 then return 0 end
return end_parcel(KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[1])
