-- Delete fields of a hash.
-- KEYS hash   ARGV fields
-- Returns the value of each, nil if it did not exist.
local values = {}
for at, field in ipairs(ARGV) do
  values[at] = redis.call('HGET', KEYS[1], field)
  if values[at] then redis.call('HDEL', KEYS[1], field) end
end
return values
