-- The effects of a job's end, put in front of ack, release and bury: they do them only if the worker still owns the job.
-- KEYS from k on and ARGV from a on; each effect is a word and then
--   push   KEYS ready, delayed, notify    ARGV payload, delay in seconds
--   count  KEYS batch, pending, failed    ARGV uuid, how it ended, place of its record, prefix (see batch.lua)
--   free   KEYS lock                      ARGV owner
--   hold   KEYS lock                      ARGV owner, seconds
--   leave  KEYS places or record          ARGV field, holder (see places.lua)
--   keep   KEYS record                    ARGV id, status, value, seconds
--   forget KEYS steps
--   ends   KEYS ends                      ARGV id, text: on a cluster, a note of the effects in other slots; it is written in
--                                         the same step, and deleted once they are done (see cluster/deferred.py)
-- Commands that may be refused come before commands that add: a script that stops after it has added would add again at
-- each try. So all effects are tried with writes that change nothing (see TRY) before the first one is done.
local KEY, ARG, TRY, DO = 1, 2, 3, 4
local kinds = {
  push = {3, 2, function(k)
    try_push(KEYS[k], KEYS[k + 1], KEYS[k + 2])
  end, function(k, a)
    push_one(KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[a], tonumber(ARGV[a + 1]))
  end},
  count = {3, 4, function(k, a)
    try_batch(KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[a + 3])
  end, function(k, a)
    count(KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
  end},
  free = {1, 1, function(k, a) redis.call('GET', KEYS[k]) end, function(k, a)
    if redis.call('GET', KEYS[k]) == ARGV[a] then redis.call('EXPIRE', KEYS[k], 0) end -- deleted, and no right to DEL is needed
  end},
  hold = {1, 2, function(k, a) redis.call('GET', KEYS[k]) end, function(k, a)
    if redis.call('GET', KEYS[k]) == ARGV[a] then redis.call('EXPIRE', KEYS[k], ARGV[a + 1]) end
  end},
  leave = {1, 2, function(k) redis.call('HDEL', KEYS[k], '') end, function(k, a)
    leave(KEYS[k], ARGV[a], ARGV[a + 1])
  end},
  keep = {1, 4, function(k, a) redis.call('HDEL', KEYS[k], '') end, function(k, a)
    keep(KEYS[k], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
  end},
  forget = {1, 0, function() end, function(k)
    redis.pcall('EXPIRE', KEYS[k], 0) -- deleted; a user who may not do that can cancel the job all the same, and it expires
  end},
  ends = {1, 2, function(k) redis.call('HDEL', KEYS[k], '') end, function(k, a)
    redis.call('HSET', KEYS[k], ARGV[a], string.format('%.3f ', clock()) .. ARGV[a + 1])
  end},
}

local function effects(part, k, a)
  while ARGV[a] do
    local kind = kinds[ARGV[a]]
    kind[part](k, a + 1)
    k, a = k + kind[KEY], a + 1 + kind[ARG]
  end
end
