-- Count the end of a batch's job on a cluster: callbacks are put aside, and the caller sends them. In front: due, batch.
-- KEYS batch, pending, failed   ARGV uuid, how it ended, place of its record
-- Returns the jobs to send: {name, delay, queue, payload, name ...}; see batch.lua.
try_batch(KEYS[1], KEYS[2], KEYS[3], APART)
count(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], APART)
return aside(KEYS[1], KEYS[2])
