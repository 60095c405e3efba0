-- Delete some waiting jobs of a queue, never running ones.
-- KEYS ready, delayed, notify, keyed
-- ARGV maximum of jobs to delete from ready, and from delayed; prefix of the names of locks ('': the locks are in other slots,
--      see cluster/keyspace.py)
-- Returns how many payloads were deleted from ready (and the suspects), and from delayed; then name and owner of each lock that the caller must
-- free. A deleted job frees its lock and its key, which its payload names, so they are not in KEYS.
local most, apart = tonumber(ARGV[1]), {}

local function forget(p)
  if not string.find(p, '"qd":{', 1, true) then return end
  for name in string.gmatch(p, '"unique":"([%w_.:@%%-]+)"') do
    local owner = ARGV[2] ~= '' and redis.call('GET', ARGV[2] .. name)
    if ARGV[2] == '' then
      local uuid = string.match(p, '"uuid":"([^"\\]*)"')
      if uuid then apart[#apart + 1], apart[#apart + 2] = name, uuid end
    elseif owner and string.find(p, '"uuid":"' .. owner .. '"', 1, true) then redis.call('EXPIRE', ARGV[2] .. name, 0) end
  end
  for issue, name in string.gmatch(p, '"key":"(%d%d%d%d%d%.%w+) ([%w_.:@%%-]+)"') do
    local entry = redis.call('HGET', KEYS[4], name)
    if entry and string.sub(entry, 1, #issue + 1) == issue .. ' ' then redis.call('HDEL', KEYS[4], name) end
  end
end

local ready = redis.call('LRANGE', KEYS[1], 0, most - 1)
local suspects = redis.call('LRANGE', KEYS[1] .. ':suspects', 0, most - 1)
local delayed = redis.call('ZRANGE', KEYS[2], 0, most - 1)
for _, p in ipairs(ready) do forget(p) end
for _, p in ipairs(suspects) do forget(p) end
for _, p in ipairs(delayed) do forget(p) end
if #ready > 0 then redis.call('LTRIM', KEYS[1], #ready, -1) end
if #suspects > 0 then redis.call('LTRIM', KEYS[1] .. ':suspects', #suspects, -1) end
if #delayed > 0 then redis.call('ZREMRANGEBYRANK', KEYS[2], 0, #delayed - 1) end
redis.call('LTRIM', KEYS[3], redis.call('LLEN', KEYS[1]) == 0 and redis.call('LLEN', KEYS[3]) or #ready + #suspects, -1)
return {#ready + #suspects, #delayed, unpack(apart)}
