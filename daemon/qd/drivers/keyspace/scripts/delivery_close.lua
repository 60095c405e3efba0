end

-- KEYS of the script above, then taken, holding, ended   ARGV of the script above; the first is the owner
-- Returns 0 if the lease was lost, else the id and the handle of the delivery ('' if it has none).
-- Commands that may be refused come first: otherwise the job would be put back while its delivery still counts as not answered.
redis.call('HDEL', KEYS[#KEYS - 2], '')
redis.call('HDEL', KEYS[#KEYS - 1], '')
redis.call('ZREM', KEYS[#KEYS], '')
if answer() == 0 then return 0 end
return end_delivery(KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[1])
