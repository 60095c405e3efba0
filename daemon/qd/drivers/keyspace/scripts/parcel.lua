-- Jobs that another server keeps, put in front of the scripts that answer them. There a job is a parcel: it has an id, and a
-- handle by which it is deleted. Here stands who has it in hand, and that it is answered, until it is deleted over there:
-- whoever is given it once more then deletes it, and runs nothing.
--   taken    hash   id -> owner "<token>/<slot>"
--   holding  hash   owner -> id, a space, handle
--   ended    zset   id -> unix seconds at which it was answered

local function note_ended(ended, id)
  local time = redis.call('TIME')
  redis.call('ZADD', ended, string.format('%.3f', time[1] + time[2] / 1000000), id)
end

-- What `owner` held is answered; that it holds it is to be taken away yet. Returns its id and handle, '' when nothing is known
-- of it.
local function note_answered(taken, holding, ended, owner)
  local parcel = redis.call('HGET', holding, owner)
  if not parcel then return '' end
  local id = string.match(parcel, '^%S+')
  note_ended(ended, id)
  redis.call('HDEL', taken, id)
  return parcel
end

local function end_parcel(taken, holding, ended, owner)
  local parcel = note_answered(taken, holding, ended, owner)
  if parcel ~= '' then redis.call('HDEL', holding, owner) end
  return parcel
end
