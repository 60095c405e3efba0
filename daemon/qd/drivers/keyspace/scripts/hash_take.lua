-- Delete fields of a hash.   KEYS hash   ARGV fields   Returns what was in each, false (nil) for one that was not there.
local were = {}
for at, field in ipairs(ARGV) do
  were[at] = redis.call('HGET', KEYS[1], field)
  if were[at] then redis.call('HDEL', KEYS[1], field) end
end
return were
