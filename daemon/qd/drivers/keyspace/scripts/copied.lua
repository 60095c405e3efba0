-- Note in records of the failed store whether a row of failed_jobs was written for them. Their length does not change.
-- KEYS failed   ARGV 1 if it was written, else 0; ids (at most 100)
-- Returns how many were changed.
local yes, no, count = '"copied": true ', '"copied": false', 0
local old, new = no, yes
if ARGV[1] == '0' then old, new = yes, no end
for at = 2, #ARGV do
  local text = redis.call('HGET', KEYS[1], ARGV[at])
  local from, to = string.find(text or '', old, 1, true)
  if from then
    redis.call('HSET', KEYS[1], ARGV[at], string.sub(text, 1, from - 1) .. new .. string.sub(text, to + 1))
    count = count + 1
  end
end
return count
