-- What a worker with several jobs owns. Turns that it sent before do nothing from now on: see lanes.lua.
-- KEYS  the hash with the fence; two per queue: reserved, owners
-- ARGV  field of the fence, number of this call, the worker's owner fields (at most 1,001)
-- Returns for each job the index of its queue, the number of its owner among these, and its payload. Owners whose lease was lost are deleted.
local held = {}
redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
local before = redis.call('HGET', KEYS[1], ARGV[1])
if not before or tonumber(before) < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
for q = 1, (#KEYS - 1) / 2 do
  local members = redis.pcall('HMGET', KEYS[2 * q + 1], unpack(ARGV, 3))
  if members.err and not string.find(members.err, 'WRONGTYPE', 1, true) then return members end
  for k, member in ipairs(members) do
    local till = member and redis.pcall('ZSCORE', KEYS[2 * q], member)
    if type(till) == 'table' and not string.find(till.err, 'WRONGTYPE', 1, true) then return till end
    if type(till) == 'string' then
      held[#held + 1], held[#held + 2], held[#held + 3] = q, k, member
    elseif member then
      redis.call('HDEL', KEYS[2 * q + 1], ARGV[2 + k])
    end
  end
end
return held
