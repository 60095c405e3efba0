-- Add audit events. One that equals an event of the last minute replaces it, with a new number and a higher count.
-- KEYS events   ARGV most entries, then for each event: how many, JSON text
-- An entry is `number first last count text`; first and last are unix seconds.
local LOOK, MINUTE = 100, 60
redis.call('LTRIM', KEYS[1], -ARGV[1], -1) -- the first write deletes: see turn.lua
local time = redis.call('TIME')
local now = time[1] .. '.' .. string.sub('00000' .. time[2], -6)
local number, recent = 0, {}
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], -LOOK, -1)) do
  local own, first, count, text = string.match(entry, '^(%d+) ([%d.]+) [%d.]+ (%d+) (.*)$')
  if own then
    number = math.max(number, tonumber(own))
    if math.abs(now - first) < MINUTE then recent[text] = {entry, first, count} end
  end
end
for at = 2, #ARGV, 2 do
  local text, before = ARGV[at + 1], recent[ARGV[at + 1]]
  local first, count = now, tonumber(ARGV[at])
  if before then first, count = before[2], before[3] + count end
  number = number + 1
  local entry = string.format('%.0f ', number) .. first .. ' ' .. now .. string.format(' %.0f ', count) .. text
  redis.call('RPUSH', KEYS[1], entry)
  if before then redis.call('LREM', KEYS[1], -1, before[1]) end
  recent[text] = {entry, first, count}
end
redis.call('LTRIM', KEYS[1], -ARGV[1], -1)
