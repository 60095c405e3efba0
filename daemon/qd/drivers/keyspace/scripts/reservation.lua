-- The reservation's fields in a payload (the unit), inside the function of rarely.lua. cjson is not used: it would turn [] into {} and
-- cut numbers at 14 digits. The unit replaces Laravel's top-level "attempts":
--   "attempts":A[,"crashes":C][,"exceptions":E][,"held":T],"rsv":"TOKEN.SEAT.TURN.N"
-- A job's checkpoint comes after it (checkpoint.lua) and is not part of it. In JSON the text "attempts" before a colon is a key
-- unless a backslash precedes its quote; only its depth must be determined.
--   fresh_text   the usual payload, as Laravel and qd push it (fresh.lua)
--   other_text   any other; gathered() if another program has rewritten it
-- Both return the new payload, its mark, where the reserve wrote (from 0), how many bytes, and which bytes it replaced, so that
-- the pushed bytes can be restored. nil: not an object, or attempts is not a count.

local COUNTS, MARK = {'crashes', 'exceptions', 'held'}, '"(%w+%.%d+%.%d+%.[%dxthc-]+)"'

-- An integer from 0 to 2^53, else nil. Compared as text: as numbers 2^53 and 2^53 + 1 are equal.
local function count(digits)
  if #digits > 16 or #digits == 16 and digits > '9007199254740992' then return nil end
  if #digits > 1 and string.byte(digits) == 48 then return nil end
  return tonumber(digits)
end

-- The unit that begins at `at`. nil if attempts is not a count.
local function unit_at(p, at)
  local _, to, digits = string.find(p, '^"attempts"%s*:%s*(%d+)%f[%s,}]', at)
  local unit = {from = at, to = to, attempts = digits and count(digits)}
  if not unit.attempts then return nil end
  for _, key in ipairs(COUNTS) do
    local _, stop, value = string.find(p, '^,"' .. key .. '":(%d+)%f[,}]', unit.to + 1)
    local number = stop and count(value)
    if number then unit.to, unit[key] = stop, number end
  end
  local _, stop, mark = string.find(p, '^,"rsv":' .. MARK, unit.to + 1)
  if stop then unit.to, unit.rsv = stop, mark end
  return unit
end

-- Another program has rewritten the payload and scattered qd's keys: cut them out, the last one first, and keep their values.
-- Returns the payload, its unit or nil, and {values, from: position of the first hole, behind: length after the last, stays}.
-- stays: a key has a value that qd does not write, and remains; then the unit must come after it, since the last of two equal
-- keys counts. No payload: attempts is not a count.
local function gathered(p)
  local MOST = 8

  local function string_end(s)
    local e = s
    repeat
      e = string.find(p, '"', e + 1, true)
      if not e then return nil end
      local k = e - 1
      while string.byte(p, k) == 92 do k = k - 1 end
    until (e - k) % 2 == 1
    return e
  end

  -- The number of opened minus closed brackets from i to before j, skipping strings.
  local function opened(i, j)
    local depth = 0
    while true do
      local s = string.find(p, '["{}%[%]]', i)
      if not s or s >= j then return depth end
      local c = string.byte(p, s)
      if c == 34 then s = string_end(s)
      elseif c == 123 or c == 91 then depth = depth + 1
      else depth = depth - 1 end
      if not s then return depth end
      i = s + 1
    end
  end

  local function keys_at(names)
    local places = {}
    for _, name in ipairs(names) do
      local s = 0
      repeat
        s = string.find(p, '"' .. name .. '"', s + 1, true)
        if s and string.byte(p, s - 1) ~= 92 and string.find(p, '^%s*:', s + #name + 2) then places[#places + 1] = s end
      until not s
    end
    table.sort(places)
    return places
  end

  -- Positions of the last top-level "attempts" and of qd's other keys. The depth is counted from the nearer end of the payload,
  -- so that large arguments without such a key are not scanned.
  local function top_level()
    local places, on_top = keys_at({'attempts', 'rsv', unpack(COUNTS)}), {}
    local k, i, depth = 1, 1, 0
    while places[k] and places[k] <= #p / 2 do
      depth, i = depth + opened(i, places[k]), places[k]
      on_top[i], k = depth == 1, k + 1
    end
    i, depth = #p + 1, 0
    for m = #places, k, -1 do
      depth, i = depth - opened(places[m], i), places[m]
      on_top[i] = depth == 1
    end
    local at, ours = nil, {}
    for _, s in ipairs(places) do
      if on_top[s] and string.byte(p, s + 1) == 97 then at = s elseif on_top[s] then ours[#ours + 1] = s end
    end
    return at, ours
  end

  -- qd's key at s, its end and its value. nil: not a value that qd writes.
  local function value_at(s)
    local _, colon, key = string.find(p, '^"(%w+)"%s*:%s*', s)
    local _, e, value = string.find(p, '^' .. (key == 'rsv' and MARK or '(%d+)'), colon + 1)
    if key ~= 'rsv' and e then value = count(value) end
    if not value or not string.find(p, '^%s*[,}]', e + 1) then return nil end
    return key, e, value
  end

  -- Cut the key from s to e out of p with one comma. Returns the position of the hole.
  local function cut(s, e)
    local _, comma = string.find(p, '^%s*,', e + 1)
    local k = s - 1
    while string.find(p, '^%s', k) do k = k - 1 end
    if string.byte(p, k) == 44 then s = k else e = comma or e end
    p = string.sub(p, 1, s - 1) .. string.sub(p, e + 1)
    return s
  end

  local at, places = top_level()
  local unit = at and unit_at(p, at)
  if at and not unit then return nil end
  local got = {stays = #places > MOST}
  for k = got.stays and 0 or #places, 1, -1 do
    local s, length = places[k], #p
    if not (unit and s >= unit.from and s <= unit.to) then
      local key, e, value = value_at(s)
      if key then
        got.from = cut(s, e)
        got.behind = got.behind or #p - got.from + 1
        got[key] = got[key] or value
        if unit and s < unit.from then unit.from, unit.to = unit.from + #p - length, unit.to + #p - length end
      else
        got.stays = true
      end
    end
  end
  return p, unit, got
end

-- again: a suspect that runs together with others. Its mark ends in a zero and the attempts: if it is never answered, the job runs alone
-- the next time.
local function other_text(p, base, again)
  -- The last "attempts" near the end, if no bracket opens after it: then it is on the top level. The job's checkpoint (at most
  -- 88 KB) may come between it and the end.
  local function in_tail()
    local saved = string.find(p, '","saved":"', math.max(1, #p - 90000), true)
    local at, from = nil, math.max(0, math.min(#p, saved or #p) - 512)
    repeat
      from = string.find(p, '"attempts"', from + 1, true)
      at = from or at
    until not from
    if not at or string.byte(p, at - 1) == 92 or not string.find(p, '^[^{}%[%]]*}%s*$', at) then return nil end
    return unit_at(p, at)
  end

  if not string.find(p, '^%s*{') or not string.find(p, '}%s*$', math.max(1, #p - 64)) then return nil end
  local pushed, unit, got = p, in_tail(), {}
  local marked = string.find(p, 'rsv"', unit and unit.rsv and unit.to + 1 or 1, true)
  for _, key in ipairs(COUNTS) do
    marked = marked or unit and unit.rsv and string.find(p, '"' .. key .. '"', unit.to + 1, true)
  end
  if marked or not unit and string.find(p, '"attempts"', 1, true) then
    p, unit, got = gathered(p)
    if not p then return nil end
  end
  unit = unit or {attempts = 0}
  local comma = ''
  if got.stays or not unit.from then -- before the closing brace
    local close = string.find(p, '}%s*$', math.max(1, #p - 64))
    unit.from, unit.to, comma = close, close - 1, string.find(p, '^%s*{%s*}') and '' or ','
  end

  -- A reservation that was never answered counts as a crash, not as an attempt; nor as a crash if the job was not alone in
  -- its worker. Either way it may have killed the worker.
  local mark, suspect = unit.rsv or got.rsv, false
  local attempts, crashes = string.format('%.0f', unit.attempts), unit.crashes or got.crashes or 0
  if mark and string.match(mark, '%.0?(%d+)$') == attempts then
    suspect = true
    if tonumber(string.match(mark, '%.(%d+)')) < 256 then crashes = crashes + 1 end
  else attempts = string.format('%.0f', unit.attempts + 1) end
  mark = base .. (again and '.0' or '.') .. attempts
  local values = {crashes, unit.exceptions or got.exceptions or 0, unit.held or got.held or 0}
  local text = comma .. '"attempts":' .. attempts
  for k, key in ipairs(COUNTS) do
    if values[k] > 0 then text = text .. string.format(',"%s":%.0f', key, values[k]) end
  end
  text = text .. ',"rsv":"' .. mark .. '"'

  -- The changed piece: from the first hole or the unit to the last hole or the unit.
  local from = math.min(got.from or unit.from, unit.from)
  local behind = math.min(got.behind or #p, #p - unit.to)
  p = string.sub(p, 1, unit.from - 1) .. text .. string.sub(p, unit.to + 1)
  return p, mark, from - 1, #p - behind - from + 1, string.sub(pushed, from, #pushed - behind), suspect
end
