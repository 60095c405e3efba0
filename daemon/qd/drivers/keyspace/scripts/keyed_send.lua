-- Send keyed jobs, each in place of the one that waits under its name.
-- KEYS ready, delayed, notify, keyed   ARGV for each job: name, issue, delay in seconds, payload
-- Returns their number.
-- The new job is added before the old one is deleted. If the old one is ready already, it remains there, and the worker that
-- takes it drops it.
for i = 1, #ARGV, 4 do
  local old = entry_of(KEYS[4], ARGV[i])
  local refused = add(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
  if refused then return refused end
  if old then redis.call('ZREM', KEYS[2], old.payload) end
end
return #ARGV / 4
