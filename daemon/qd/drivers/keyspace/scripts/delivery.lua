-- Jobs that a broker keeps, put in front of the scripts that answer them. A delivery has an id, and a handle to
-- delete it. This keyspace records its owner, and that it was answered until the broker has deleted it: a worker that receives
-- an answered delivery again deletes it and does not run the job.
--   taken    hash   id -> owner "<token>/<slot>"
--   holding  hash   owner -> id, a space, handle
--   ended    zset   id -> unix seconds at which it was answered

local function note_ended(ended, id)
  local time = redis.call('TIME')
  redis.call('ZADD', ended, string.format('%.3f', time[1] + time[2] / 1000000), id)
end

-- Mark the delivery that `owner` holds as answered; the caller deletes the ownership. Returns its id and handle, '' if unknown.
local function note_answered(taken, holding, ended, owner)
  local delivery = redis.call('HGET', holding, owner)
  if not delivery then return '' end
  local id = string.match(delivery, '^%S+')
  note_ended(ended, id)
  redis.call('HDEL', taken, id)
  return delivery
end

-- As note_answered, and delete the ownership.
local function end_delivery(taken, holding, ended, owner)
  local delivery = note_answered(taken, holding, ended, owner)
  if delivery ~= '' then redis.call('HDEL', holding, owner) end
  return delivery
end
