-- Send unique jobs: each takes its lock, or is not sent. In front: due, single.
-- KEYS ready, delayed, notify, then the lock of each job
-- ARGV for each job: owner, maximum of ms to hold the lock, delay in seconds, payload
-- Returns for each job the owner of its lock: the job itself if it was sent, else another.
local holders = {}
for i = 1, #ARGV, 4 do
  local lock = KEYS[4 + (i - 1) / 4]
  local holder = put_single(KEYS[1], KEYS[2], KEYS[3], lock, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
  if type(holder) == 'table' then return holder end
  holders[#holders + 1] = holder
end
return holders
