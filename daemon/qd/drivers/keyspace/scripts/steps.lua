-- The durable steps of a job: read all of them, or record one. Safe to repeat after a lost reply.
-- KEYS steps (hash: name -> result; '' -> the attempt that read them last, and how many bytes they have)
-- ARGV mark of the attempt; to record one: name, result, and 1 if the server still has the reservation
-- Returns to read: names and results; from now on only this attempt records.
--         to record: {}, or name and result if the step was recorded before; 0 if another attempt has read the steps since, or
--         they are gone; -1 if they would be too many or too large
local MOST, MOST_BYTES, MONTH = 1000, 1048576, 30 * 86400 -- kept for so many seconds since the last step
local mark, bytes = string.match(redis.call('HGET', KEYS[1], '') or '', '^(%S+) (%d+)$')
local name, result, found = ARGV[2], ARGV[3], {}
if not name then
  found = redis.call('HGETALL', KEYS[1])
elseif mark ~= ARGV[1] and ARGV[4] ~= '1' then
  return 0
elseif redis.call('HEXISTS', KEYS[1], name) == 1 then
  found = {name, redis.call('HGET', KEYS[1], name)}
else
  bytes = (bytes or 0) + #name + #result
  if bytes > MOST_BYTES or redis.call('HLEN', KEYS[1]) > MOST then return -1 end -- one of the fields is no step
end
redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
redis.call('HSET', KEYS[1], '', string.format('%s %d', ARGV[1], bytes or 0))
if name and not found[1] then redis.call('HSET', KEYS[1], name, result) end
redis.call('EXPIRE', KEYS[1], MONTH)
return found
