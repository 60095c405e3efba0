-- The reserve's own text inside a payload, put in front of turn.lua. cjson is not used: it would turn [] into {} and cut
-- numbers at 14 digits. The unit stands where Laravel's top-level "attempts" stands:
--   "attempts":A[,"crashes":C][,"exceptions":E][,"held":T][,"rsv":"TOKEN.SLOT.TURN.N"]
-- In JSON the text "attempts": with its quote not behind a backslash can only be a key; only its depth is in question.

local OURS = {['"crashes"'] = 1, ['"exceptions"'] = 1, ['"held"'] = 1, ['"rsv"'] = 1}

-- The last "attempts" of the tail, if everything behind it is flat up to the closing brace: then its depth is one.
local function in_tail(p)
  local shift = math.max(0, #p - 512)
  local tail = shift > 0 and string.sub(p, shift + 1) or p
  local from, at = nil, 0
  repeat
    from, at = (at > 0 and at or from), string.find(tail, '"attempts":', at + 1, true)
  until not at
  if not from or string.byte(p, shift + from - 1) == 92 then return nil end
  if not string.find(tail, '^[^{}%[%]]*}%s*$', from) then return nil end
  return shift + from
end

-- The same for any payload: walk over strings and brackets. Also tells where keys of ours stand on the top level.
local function by_scan(p)
  local depth, i, at, ours = 0, 1, nil, {}
  while true do
    local s = string.find(p, '["{}%[%]]', i)
    if not s then return at, ours end
    local c = string.byte(p, s)
    i = s + 1
    if c == 34 then
      local e = s
      repeat
        e = string.find(p, '["\\]', e + 1)
        local escaped = e and string.byte(p, e) == 92
        if escaped then e = e + 1 end
      until not escaped
      if not e then return at, ours end
      if depth == 1 and e - s < 13 then
        local key = string.sub(p, s, e)
        if key == '"attempts"' and string.find(p, '^%s*:', e + 1) then at = s end
        if OURS[key] and string.find(p, '^:', e + 1) then ours[#ours + 1] = s end
      end
      i = e + 1
    elseif c == 123 or c == 91 then depth = depth + 1
    else depth = depth - 1 end
  end
end

-- The unit that begins at `at`. nil when attempts is not an integer from 0 to 2^53.
local function unit_at(p, at)
  local _, e, digits = string.find(p, '^"attempts"%s*:%s*(%d+)', at)
  if not e or not string.find(p, '^%s*[,}]', e + 1) then return nil end
  if #digits > 16 or tonumber(digits) > 9007199254740992 or (#digits > 1 and string.byte(digits) == 48) then return nil end
  local unit = {from = at, to = e, attempts = tonumber(digits), crashes = 0, exceptions = 0, held = 0}
  for _, key in ipairs({'crashes', 'exceptions', 'held'}) do
    local _, stop, value = string.find(p, '^,"' .. key .. '":(%d+)', unit.to + 1)
    if stop then unit.to, unit[key] = stop, tonumber(value) end
  end
  local _, stop, mark = string.find(p, '^,"rsv":"([^"]*)"', unit.to + 1)
  if stop then unit.to, unit.rsv = stop, mark end
  return unit
end

-- A payload that another program has written again: keys of ours were scattered. Take them out, keep what they said.
local function gathered(p, places)
  local found = {}
  for k = #places, 1, -1 do
    local s = places[k]
    local _, e, key, value = string.find(p, '^"(%w+)":"?([%w%.%-]*)"?', s)
    found[key] = value
    if string.byte(p, s - 1) == 44 then s = s - 1 elseif string.byte(p, e + 1) == 44 then e = e + 1 end
    p = string.sub(p, 1, s - 1) .. string.sub(p, e + 1)
  end
  return p, found
end

local function adopt(unit, found)
  for _, key in ipairs({'crashes', 'exceptions', 'held'}) do unit[key] = tonumber(found[key] or 0) or 0 end
  unit.rsv = found.rsv
end

-- The payload's unit, and the payload as it is to be read. Third: true when attempts is there and is no count.
local function read_unit(p)
  local at, places, found = in_tail(p), nil, nil
  local unit = at and unit_at(p, at)
  if unit and (unit.rsv or not string.find(p, '"rsv":"', 1, true)) then return unit, p end
  at, places = by_scan(p)
  unit = at and unit_at(p, at)
  if at and not unit then return nil, p, true end
  if #places > 0 and not (unit and unit.rsv) then
    p, found = gathered(p, places)
    at = by_scan(p)
    unit = at and unit_at(p, at)
  end
  if not unit then -- no attempts at all: append them before the closing brace
    local close = string.find(p, '}%s*$', math.max(1, #p - 64))
    unit = {from = close, to = close - 1, attempts = 0, crashes = 0, exceptions = 0, held = 0,
            comma = not string.find(p, '^%s*{%s*}%s*$')}
  end
  if found then adopt(unit, found) end
  return unit, p
end

-- Write the unit for a reservation. Returns the new payload, its mark, where the text begins, its length, what was there.
local function reserve_text(p, base)
  local unit, bad
  unit, p, bad = read_unit(p)
  if bad then return nil end
  local attempts = string.format('%.0f', unit.attempts)
  if unit.rsv and string.match(unit.rsv, '[^.]*$') == attempts then unit.crashes = unit.crashes + 1
  else attempts = string.format('%.0f', unit.attempts + 1) end
  local mark = base .. '.' .. attempts
  local text = (unit.comma and ',' or '') .. '"attempts":' .. attempts
  for _, key in ipairs({'crashes', 'exceptions', 'held'}) do
    if unit[key] > 0 then text = text .. ',"' .. key .. '":' .. string.format('%.0f', unit[key]) end
  end
  text = text .. ',"rsv":"' .. mark .. '"'
  local before = string.sub(p, unit.from, unit.to)
  return string.sub(p, 1, unit.from - 1) .. text .. string.sub(p, unit.to + 1), mark, unit.from - 1, #text, before
end
