-- Move failed jobs back to ready, all in this step: even if the caller dies, each job is in exactly one place.
-- KEYS failed, failed_at, ready, notify, batch, then locks, stored results, and batch, pending, failed of each batch
-- ARGV 1 if the first moved job ends the cancellation of the batch, else 0
--      for each job (at most 100): id, payload to send, owner of its lock, seconds to hold it, and indexes in KEYS (0: none):
--      of the lock, of the stored result, which is deleted, of its batch; the place of its record as noted in its batch
-- Returns for each job 1; 0: no such record (another process moved it); -1: another job has its lock, and it stays failed.
-- The first write deletes: see turn.lua.
redis.call('ZREM', KEYS[2], '')
local bytes, outcomes = kept_bytes(KEYS[1], KEYS[2]), {}
for at = 2, #ARGV, 8 do
  local id, payload, owner, seconds = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local lock, kept, batch = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local holder = lock > 0 and redis.call('GET', KEYS[lock])
  local size = redis.call('HSTRLEN', KEYS[1], id)
  if size == 0 then
    outcomes[#outcomes + 1] = 0
  elseif holder and holder ~= owner then
    outcomes[#outcomes + 1] = -1
  else
    if ARGV[1] == '1' then redis.call('HDEL', KEYS[5], 'cancelled_at') end
    if kept > 0 then redis.call('EXPIRE', KEYS[kept], 0) end -- deleted, and no right to DEL is needed
    if lock > 0 then redis.call('SET', KEYS[lock], owner, 'PX', math.ceil(seconds * 1000)) end
    if batch > 0 then note_retried(KEYS[batch + 2], owner, ARGV[at + 7]) end
    redis.call('RPUSH', KEYS[4], '1')
    redis.call('RPUSH', KEYS[3], payload)
    unbury(KEYS[1], KEYS[2], {id}, bytes)
    bytes = bytes - size
    outcomes[#outcomes + 1] = 1
  end
end
return outcomes
