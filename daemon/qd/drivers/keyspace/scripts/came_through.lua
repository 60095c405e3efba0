-- Put in front of outbox and outbox_leave. These jobs were sent and will not be sent again: forget how often they were taken,
-- unless they may have been sent twice.
-- resent: the key   from: where the digests begin in ARGV
local function came_through(resent, from)
  for k = from, #ARGV do
    if not redis.call('HGET', resent, ARGV[k]) then redis.call('HDEL', resent, 'taken ' .. ARGV[k]) end
  end
end
