-- The usual turn, put in front of everything else of turn.lua, for speed (functions cost time, too): the ack finds its job, no queue is paused or has
-- suspects, and the head of the same, first queue is the payload that qd and Laravel push, never reserved, without a lock or
-- key, and not for PHP. In any other case the rest of turn.lua goes on from `acked`. Arguments and reply: see there.
local acked, found
if ARGV[8] == '1' then
  acked = redis.pcall('ZREM', KEYS[2], ARGV[9])
  found = acked == 1 and ARGV[10] == '' and paused_or_suspects() or nil
  local p = found == 0 and redis.pcall('LINDEX', KEYS[1], 0)
  if type(p) == 'string' and string.sub(p, -27) == ',"attempts":0,"delay":null}' and string.byte(p) == 123
    and string.byte(p, #p - 67) ~= 125 and string.byte(p, #p - 71) ~= 125 -- see may_be_tied
    and not string.find(p, 'rsv"', 1, true) and not string.find(p, [[Illuminate\\Queue\\CallQueuedHandler@call"]], 1, true)
    and (ARGV[4] == '0' or #p <= tonumber(ARGV[4])) and not string.find(ARGV[3], '%.[^0]') then
    local time, mark = redis.call('TIME'), ARGV[7] .. '.1'
    local text = string.sub(p, 1, -27) .. '"attempts":1,"rsv":"' .. mark .. '","delay":null}'
    -- Tokens are hints, so every tenth turn takes those of ten. In this order a refusal leaves the job ready, see take.lua.
    local step = string.byte(ARGV[7], -1) == 48 and redis.pcall('LTRIM', KEYS[4], 10, -1)
    if not step or step.ok then step = redis.pcall('ZADD', KEYS[2], string.format('%d.%06d', time[1] + ARGV[3], time[2]), text) end
    if type(step) ~= 'table' then step = redis.pcall('HSET', KEYS[5], ARGV[6], text) end
    if type(step) ~= 'table' then step = redis.pcall('LPOP', KEYS[1]) end
    if type(step) ~= 'table' then return {1, -1, {}, 1, text, mark, #p - 26, #mark + 21, '"attempts":0'} end
    redis.call('ZREM', KEYS[2], text)
    redis.pcall('HDEL', KEYS[5], ARGV[6])
    if not string.find(step.err, 'WRONGTYPE', 1, true) then return step end
  end
end
