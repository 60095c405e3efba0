-- Two hashes, put in front of the scripts that write them. Each value is "<ms at which it ends> <holder>":
--   places   owner -> until when it has a place, and which attempt took it
--   record   place -> the same, for one owner: the places to free when its job ends without freeing them itself
local function note_place(record, place, holder, now, span)
  redis.call('HSET', record, place, string.format('%.0f %s', now + span, holder))
  redis.call('PEXPIRE', record, string.format('%.0f', math.max(span, redis.call('PTTL', record))))
end

-- Delete a field if this holder still has it. Returns 1 or 0.
local function leave(key, field, holder)
  local held = redis.call('HGET', key, field)
  if not held or string.match(held, '^%d+ (.*)$') ~= holder then return 0 end
  return redis.call('HDEL', key, field)
end
