-- Expired leases: their jobs go to the outbox, and their deliveries are marked as answered.
-- KEYS  1 cancelled jobs; then seven per queue: ready, reserved, notify, owners, taken, holding, ended
-- ARGV  1 last moment of this clock at which it may reclaim
-- Returns { jobs, then for each with a delivery: index of its queue (from 1), id and handle of the delivery }
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
if now > tonumber(ARGV[1]) then return {0} end
local reply = {0}

-- A job that was cancelled while it ran gets a mark that makes the next worker drop it: see beat.lua.
local function dropped(payload)
  for _, mark in ipairs(redis.pcall('HKEYS', KEYS[1])) do
    local _, at = string.find(payload, '"rsv":"' .. mark .. '.', 1, true)
    if at then
      redis.call('HDEL', KEYS[1], mark)
      return string.sub(payload, 1, at) .. 'c' .. string.sub(payload, string.find(payload, '"', at, true), -1)
    end
  end
  return payload
end

for i = 2, #KEYS, 7 do
  local expired = redis.call('ZRANGEBYSCORE', KEYS[i + 1], '-inf', string.format('%.6f', now), 'LIMIT', 0, 100)
  local owners, flat = {}, #expired > 0 and redis.call('HGETALL', KEYS[i + 3]) or {}
  for k = 1, #flat, 2 do owners[flat[k + 1]] = flat[k] end
  for _, payload in ipairs(expired) do
    local owner = owners[payload]
    redis.call('RPUSH', KEYS[i + 2], '1')
    redis.call('RPUSH', KEYS[i], dropped(payload))
    if owner then
      local delivery = end_delivery(KEYS[i + 4], KEYS[i + 5], KEYS[i + 6], owner)
      if delivery ~= '' then reply[#reply + 1], reply[#reply + 2] = (i + 5) / 7, delivery end
      redis.call('HDEL', KEYS[i + 3], owner)
    end
    redis.call('ZREM', KEYS[i + 1], payload)
    reply[1] = reply[1] + 1
  end
end
return reply
