-- Notes of effects that are not done yet: see `ends` of effects.lua.
-- KEYS ends   ARGV minimum age in seconds, cursor ("0" at first)
-- Returns {next cursor ("0" at the end), id, text, id, text ...}
local before = clock() - ARGV[1]
local answer = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 50)
local found = {answer[1]}
for k = 1, #answer[2], 2 do
  local at, text = string.match(answer[2][k + 1], '^([%d.]+) (.*)$')
  if at and tonumber(at) <= before then found[#found + 1], found[#found + 2] = answer[2][k], text end
end
return found
