-- Put in front of turn.lua and lanes.lua: how many of the keys `paused` and `suspects` of all queues exist. Usually none,
-- which one call shows.
local function paused_or_suspects()
  if #KEYS == 9 then return redis.call('EXISTS', KEYS[6], KEYS[9]) end
  local names = {}
  for i = 6, #KEYS, 9 do names[#names + 1], names[#names + 2] = KEYS[i], KEYS[i + 3] end
  return redis.call('EXISTS', unpack(names))
end
