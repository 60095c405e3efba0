-- Nobody will send again what was sent: how often it was taken need not be known any more, unless it was sent twice before.
-- resent: the key   from: where in ARGV the digests begin
local function came_through(resent, from)
  for k = from, #ARGV do
    if not redis.call('HGET', resent, ARGV[k]) then redis.call('HDEL', resent, 'taken ' .. ARGV[k]) end
  end
end
