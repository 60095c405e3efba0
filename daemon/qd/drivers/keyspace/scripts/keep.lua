-- Store how a job ended: a hash with a TTL. value: JSON text.
local function keep(record, id, status, value, seconds)
  redis.call('HSET', record, 'status', status, 'value', value, 'at', redis.call('TIME')[1])
  redis.call('EXPIRE', record, math.max(1, math.min(3153600000, math.ceil(tonumber(seconds)))))
end
