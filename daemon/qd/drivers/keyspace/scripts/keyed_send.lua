-- Send jobs under a name each, in place of what waits there.
-- KEYS ready, delayed, notify, keyed   ARGV name, issue, delay in seconds, payload; four a job   Returns their number
-- The new one is added before the old one goes. One that is ready already stays there, and is dropped by who takes it.
for i = 1, #ARGV, 4 do
  local old = entry_of(KEYS[4], ARGV[i])
  local refused = add(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
  if refused then return refused end
  if old then redis.call('ZREM', KEYS[2], old.payload) end
end
return #ARGV / 4
