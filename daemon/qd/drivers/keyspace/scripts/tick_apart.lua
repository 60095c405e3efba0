-- Take ticks of schedule entries on a cluster: their jobs are noted in the same step, and the caller sends them. See tick.lua.
-- In front: due.
-- KEYS ticks, ends   ARGV for each tick, no field twice: field, the value that was read, the new value, the tick in ms, id and
--   text of the note ('': no job)
-- Returns this server's unix ms, and for each tick 1, 0 or {text} as tick.lua.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {now_ms}
redis.call('HLEN', KEYS[2]) -- a key of another type: refused before anything is taken
for i = 1, #ARGV, 6 do
  local found = redis.call('HGET', KEYS[1], ARGV[i])
  if (found or '') ~= ARGV[i + 1] then answers[#answers + 1] = {found}
  elseif tonumber(ARGV[i + 3]) > now_ms then answers[#answers + 1] = 0
  else
    if ARGV[i + 5] ~= '' then redis.call('HSET', KEYS[2], ARGV[i + 4], string.format('%.3f ', now_ms / 1000) .. ARGV[i + 5]) end
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    answers[#answers + 1] = 1
  end
end
return answers
