-- Send jobs that may have been sent before, each once. For a cluster: a process that sends jobs from a note in another slot may
-- die before it deletes the note. In front: due, keyed, batch.
-- KEYS ready, delayed, notify, keyed, seen (zset: id -> unix seconds until which it is remembered)
-- ARGV seconds for which an id is remembered, then for each job: id, and
--   push, delay in s, payload  |  keyed, name, issue, delay in s, payload
-- Returns for each job 1, or 0 if it was sent before.
local WORDS = {push = 3, keyed = 5}
local answers, at = {}, 2
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('%.3f', now))
try_push(KEYS[1], KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[4], '')

local function send(a)
  if ARGV[a] == 'push' then return push_one(KEYS[1], KEYS[2], KEYS[3], ARGV[a + 2], tonumber(ARGV[a + 1])) end
  local old = entry_of(KEYS[4], ARGV[a + 1])
  local refused = add(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 4])
  if old and not refused then redis.call('ZREM', KEYS[2], old.payload) end
  return refused
end

while ARGV[at] do
  local fresh = not redis.call('ZSCORE', KEYS[5], ARGV[at])
  if fresh then
    local refused = send(at + 1)
    if refused then return refused end
    redis.call('ZADD', KEYS[5], string.format('%.3f', now + ARGV[1]), ARGV[at])
  end
  answers[#answers + 1] = fresh and 1 or 0
  at = at + 1 + WORDS[ARGV[at + 1]]
end
redis.call('EXPIRE', KEYS[5], ARGV[1])
return answers
