-- Add a master's counts to the statistics, each write once.
-- KEYS numbers, total, hour, minute, depths of this minute, depths of the one before: for those that it does not have
-- ARGV token, number of this write, most fields of a hash, ms until total, hour and minute expire, what names beyond `most`
-- are added to, count of pairs, then pairs of name and numbers, then pairs of queue and depths
-- Numbers are "1 INDEX:VALUE INDEX:VALUE ...", without zeros; 1 is the format. Returns 1, or 0 if this write was added before.
local most, pairs_end = tonumber(ARGV[3]), 8 + 2 * tonumber(ARGV[8])

local function read(text, into)
  for index, value in string.gmatch(string.sub(text, 3), '(%d+):(%d+)') do
    index = tonumber(index)
    into[index] = (into[index] or 0) + tonumber(value)
  end
end

local function text_of(numbers)
  local parts = {'1'}
  for index = 0, 63 do
    if numbers[index] then parts[#parts + 1] = string.format('%d:%.0f', index, numbers[index]) end
  end
  return table.concat(parts, ' ')
end

local function add(key, ms)
  local names = {ARGV[7]}
  for i = 9, pairs_end, 2 do names[#names + 1] = ARGV[i] end
  local found, count = redis.call('HMGET', key, unpack(names)), redis.call('HLEN', key)
  local values, others = {}, nil
  for n = 2, #names do
    local numbers = {}
    if not found[n] and count >= most then
      others = others or {}
      numbers = others
    elseif names[n] == ARGV[7] then
      others = others or {}
      numbers = others
    else
      if found[n] then read(found[n], numbers) else count = count + 1 end
    end
    read(ARGV[8 + 2 * (n - 1)], numbers)
    if numbers ~= others then
      values[#values + 1] = names[n]
      values[#values + 1] = text_of(numbers)
    end
  end
  if others then
    if found[1] then read(found[1], others) end
    values[#values + 1] = ARGV[7]
    values[#values + 1] = text_of(others)
  end
  if #values > 0 then redis.call('HSET', key, unpack(values)) end
  redis.call('PEXPIRE', key, ms)
end

redis.call('HDEL', KEYS[1], '') -- the first write deletes: see turn.lua
if #ARGV > pairs_end then
  redis.call('HSET', KEYS[5], unpack(ARGV, pairs_end + 1))
  local queues = {}
  for i = pairs_end + 1, #ARGV, 2 do queues[#queues + 1] = ARGV[i] end
  local before = redis.call('HMGET', KEYS[6], unpack(queues))
  for n, name in ipairs(queues) do
    if not before[n] then redis.call('HSET', KEYS[6], name, ARGV[pairs_end + 2 * n]) end
  end
  redis.call('PEXPIRE', KEYS[5], ARGV[6])
  redis.call('PEXPIRE', KEYS[6], ARGV[6])
end
if tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if pairs_end > 8 then
  add(KEYS[2], ARGV[4])
  add(KEYS[3], ARGV[5])
  add(KEYS[4], ARGV[6])
end
return 1
