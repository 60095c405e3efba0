-- Count the end of a job of a batch, on a cluster: what it calls back is put aside, and sent by who counted. In front: due,
-- batch.
-- KEYS batch, pending, failed   ARGV uuid, how it ended, place of its record
-- Returns what is to be sent: {name, delay, queue, payload, name ...}; see aside.
try_batch(KEYS[1], KEYS[2], KEYS[3], APART)
count(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], APART)
return aside(KEYS[1], KEYS[2])
