-- The usual payload, put in front of take.lua: what a turn does with each payload. Everything else is in reservation.lua and
-- tied.lua.

-- Attempts 0 at the end, and never reserved before: the position of that key's comma, else nil.
local function fresh_at(p)
  local at = string.find(p, ',"attempts":0', -27, true)
  local rest = at and string.sub(p, at + 13)
  if rest ~= ',"delay":null}' and rest ~= '}' then return nil end
  if string.byte(p) ~= 123 or string.find(p, 'rsv"', 1, true) then return nil end
  return at, rest
end

local function fresh_text(p, base)
  local at, rest = fresh_at(p)
  if not at then return nil end
  local mark = base .. '.1'
  local text = '"attempts":1,"rsv":"' .. mark .. '"'
  return string.sub(p, 1, at) .. text .. rest, mark, at, #text, '"attempts":0'
end

-- qd writes "qd" last before the id, so one byte identifies the usual payload, with an id of 32 letters or a uuid.
local function may_be_tied(p)
  if string.sub(p, -27) == ',"attempts":0,"delay":null}' then
    return string.byte(p, #p - 67) == 125 or string.byte(p, #p - 71) == 125
  end
  return string.find(p, '"qd":{', 1, true) ~= nil
end
