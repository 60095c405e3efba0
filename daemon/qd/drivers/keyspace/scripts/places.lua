-- Two hashes, put in front of the scripts that write them. Each value is "<ms at which it ends> <holder>":
--   places   owner -> until when it has one of the places, and which attempt took it
--   record   place -> the same, of one owner: what must be freed when its job ends without freeing it itself
local function note_place(record, place, holder, now, span)
  redis.call('HSET', record, place, string.format('%.0f %s', now + span, holder))
  redis.call('PEXPIRE', record, string.format('%.0f', math.max(span, redis.call('PTTL', record))))
end

-- Delete a field if its holder is still this one. Returns 1 or 0.
local function leave(key, field, holder)
  local held = redis.call('HGET', key, field)
  if not held or string.match(held, '^%d+ (.*)$') ~= holder then return 0 end
  return redis.call('HDEL', key, field)
end
