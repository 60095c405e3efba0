-- These jobs were sent and will not be sent again: forget how often they were taken, unless they had been sent twice before.
-- resent: the key   from: where in ARGV the digests begin
local function came_through(resent, from)
  for k = from, #ARGV do
    if not redis.call('HGET', resent, ARGV[k]) then redis.call('HDEL', resent, 'taken ' .. ARGV[k]) end
  end
end
