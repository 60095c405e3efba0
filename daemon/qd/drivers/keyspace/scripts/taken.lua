-- For databases, where SQL leases the jobs: take a job that has a lock or a key, as a turn does. In front: tied.
-- KEYS keyed   ARGV payload, prefix of the names of locks
-- Returns the payload to lease, or nil if the job was cancelled or moved meanwhile and must be dropped.
local text, once_leased = taken(ARGV[1], KEYS[1], ARGV[2])
if once_leased then once_leased() end
return text or nil
