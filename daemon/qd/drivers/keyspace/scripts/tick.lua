-- Take ticks of schedule entries, each for one scheduler only, and send their jobs. In front: due, keyed, single (see PARTS
-- in base.py).
-- KEYS ticks, ready, delayed, notify, keyed, and a lock for each "single" (ticks alone if no tick sends a job)
-- ARGV for each tick, no field twice: field, the value that was read ("": it did not exist), the new value, the tick in ms, and
--   none  |  push, delay in s, payload  |  single, owner, ms it holds the lock, delay, payload  |  keyed, name, issue, delay,
-- payload
-- Returns this server's unix ms at the end, and for each tick
--   1        taken, and its job sent            text   taken; its job was not sent, this owner holds the lock
--   0        too early by this server's clock   {text} not taken: the value of the field ({false}: it does not exist)
--   error    refused; nothing was done
-- A field is set before its job is added, and restored if adding is refused.
local WORDS = {none = 1, push = 3, single = 5, keyed = 5}
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now_ms = now()
local ticks, starts, fields = KEYS[1], {}, {}
local i = 1
while ARGV[i] do
  starts[#starts + 1], fields[#fields + 1] = i, ARGV[i]
  i = i + 4 + WORDS[ARGV[i + 4]]
end

local function refused(step)
  return type(step) == 'table' and step.err ~= nil
end

local function set_back(start)
  if ARGV[start + 1] == '' then redis.call('HDEL', ticks, ARGV[start])
  else redis.call('HSET', ticks, ARGV[start], ARGV[start + 1]) end
end

-- Send a job that is delayed, keyed or unique. lock: its index in KEYS.
local function send(a, lock)
  if ARGV[a] == 'push' then return put(KEYS[2], KEYS[3], KEYS[4], tonumber(ARGV[a + 1]), ARGV[a + 2]) end
  if ARGV[a] == 'single' then
    return put_single(KEYS[2], KEYS[3], KEYS[4], lock, ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 4])
  end
  local step = redis.pcall('HGET', KEYS[5], ARGV[a + 1])
  if refused(step) then return step end
  local old = entry_of(KEYS[5], ARGV[a + 1])
  step = add(KEYS[2], KEYS[3], KEYS[4], KEYS[5], ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 4])
  if old and not step then redis.call('ZREM', KEYS[3], old.payload) end
  return step
end

local function take(start, lock)
  local step = redis.pcall('HSET', ticks, ARGV[start], ARGV[start + 2])
  if refused(step) then return step end
  step = send(start + 4, lock)
  if refused(step) then set_back(start) end
  if ARGV[start + 4] == 'single' and step ~= ARGV[start + 5] or refused(step) then return step end
  return 1
end

-- Many ticks together: those without a job, and those whose jobs are ready now. Returns 1, or the error.
local function take_all(these)
  if #these == 0 then return 1 end
  local values, payloads, tokens = {}, {}, {}
  for n, start in ipairs(these) do
    values[2 * n - 1], values[2 * n] = ARGV[start], ARGV[start + 2]
    if ARGV[start + 4] == 'push' then payloads[#payloads + 1], tokens[#tokens + 1] = ARGV[start + 6], '1' end
  end
  local step = redis.pcall('HSET', ticks, unpack(values))
  if refused(step) then return step end
  if #payloads > 0 then
    step = redis.pcall('RPUSH', KEYS[4], unpack(tokens))
    if not refused(step) then step = redis.pcall('RPUSH', KEYS[2], unpack(payloads)) end
  end
  if not refused(step) then return 1 end
  for _, start in ipairs(these) do set_back(start) end
  return step
end

local found = redis.call('HMGET', ticks, unpack(fields))
local answers, plain, locks = {0}, {}, 5
for n, start in ipairs(starts) do
  local how = ARGV[start + 4]
  if how == 'single' then locks = locks + 1 end
  if (found[n] or '') ~= ARGV[start + 1] then answers[n + 1] = {found[n]}
  elseif tonumber(ARGV[start + 3]) > now_ms then answers[n + 1] = 0
  elseif how == 'none' or how == 'push' and ARGV[start + 5] == '0' then
    plain[#plain + 1] = start
    answers[n + 1] = 'plain'
  else
    answers[n + 1] = take(start, KEYS[locks])
  end
end
local all = take_all(plain)
for n = 2, #answers do
  if answers[n] == 'plain' then answers[n] = all end
end
answers[1] = now()
return answers
