-- Move failed jobs back to ready on a cluster: the other effects are noted in the same step, and the caller does them. In
-- front: due, failed. See retry.lua.
-- KEYS failed, failed_at, ready, notify, ends
-- ARGV for each job (at most 100): id, payload to send, id of the note, its text ('': no note)
-- Returns for each job 1; 0: no such record.
redis.call('ZREM', KEYS[2], '') -- the first write deletes: see turn.lua
local bytes, outcomes = kept_bytes(KEYS[1], KEYS[2]), {}
for at = 1, #ARGV, 4 do
  local size = redis.call('HSTRLEN', KEYS[1], ARGV[at])
  if size > 0 then
    if ARGV[at + 3] ~= '' then
      redis.call('HSET', KEYS[5], ARGV[at + 2], string.format('%.3f ', clock()) .. ARGV[at + 3])
    end
    redis.call('RPUSH', KEYS[4], '1')
    redis.call('RPUSH', KEYS[3], ARGV[at + 1])
    unbury(KEYS[1], KEYS[2], {ARGV[at]}, bytes)
    bytes = bytes - size
  end
  outcomes[#outcomes + 1] = size > 0 and 1 or 0
end
return outcomes
