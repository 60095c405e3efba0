-- Send jobs of which only one at a time may be there: each takes its lock, or is not sent. In front: due, single.
-- KEYS ready, delayed, notify, and a lock each
-- ARGV owner, milliseconds it holds the lock at most, delay in seconds, payload; four a job
-- Returns for each job who holds its lock: itself when it was sent, else another.
local holders = {}
for i = 1, #ARGV, 4 do
  local lock = KEYS[4 + (i - 1) / 4]
  local holder = put_single(KEYS[1], KEYS[2], KEYS[3], lock, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
  if type(holder) == 'table' then return holder end
  holders[#holders + 1] = holder
end
return holders
