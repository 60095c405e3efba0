-- Move failed jobs back to ready, each of them in this one step: wherever the caller dies, a job is in exactly one place.
-- KEYS failed, failed_at, ready, notify, locks
-- ARGV for each job (at most 100): id, payload as it is sent again, owner of its lock, seconds it is held, and the place of
--      the lock in KEYS (0: it needs none)
-- Returns for each job 1; 0: no such record, somebody was here before; -1: another job has its lock, and it stays failed.
-- The first write takes something away: see turn.lua.
redis.call('ZREM', KEYS[2], '')
local bytes, said = kept_bytes(KEYS[1], KEYS[2]), {}
for at = 1, #ARGV, 5 do
  local id, payload, owner, seconds, lock = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local holder = lock > 0 and redis.call('GET', KEYS[lock])
  local size = redis.call('HSTRLEN', KEYS[1], id)
  if size == 0 then
    said[#said + 1] = 0
  elseif holder and holder ~= owner then
    said[#said + 1] = -1
  else
    if lock > 0 then redis.call('SET', KEYS[lock], owner, 'PX', math.ceil(seconds * 1000)) end
    redis.call('RPUSH', KEYS[4], '1')
    redis.call('RPUSH', KEYS[3], payload)
    unbury(KEYS[1], KEYS[2], {id}, bytes)
    bytes = bytes - size
    said[#said + 1] = 1
  end
end
return said
