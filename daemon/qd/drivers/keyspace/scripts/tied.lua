-- Taking jobs with a lock or a key, inside the function of rarely.lua. Locks and entries are named in the payload, so they are not KEYS.
--   "unique":"NAME"       its lock is renewed from now on; a lock until the start is freed later, after the middleware
--   "key":"ISSUE NAME"    its entry under NAME. If the entry has the same issue, the job is taken and can no longer be moved or
--                         cancelled, and the payload says "taken". If not, it was moved or cancelled, and is dropped

local QD = '"qd":{'

-- The last top-level key "qd" at or after `first`: only the payload's own bracket closes after it. One scan. nil: none.
local function on_top(p, first)
  local depth, s, seen = 0, first - 1, {}
  while true do
    s = string.find(p, '["{}%[%]]', s + 1)
    if not s then return seen[depth + 1] end
    local c = string.byte(p, s)
    if c == 34 then
      if string.sub(p, s, s + #QD - 1) == QD then seen[depth] = s end
      repeat
        s = string.find(p, '"', s + 1, true)
        if not s then return nil end
        local k = s - 1
        while string.byte(p, k) == 92 do k = k - 1 end
      until (s - k) % 2 == 1
    else
      depth = depth + ((c == 123 or c == 91) and 1 or -1)
    end
  end
end

-- The value of "qd", and everything after it. Usually it is the last key of that name, with little after it.
local function ties_of(p)
  local first, last, from = nil, nil, 0
  repeat
    from = string.find(p, QD, from + 1, true)
    if from and string.byte(p, from - 1) ~= 92 then first, last = first or from, from end -- else it is in a string
  until not from
  local at = last and (on_top(p, last) or first < last and on_top(p, first))
  return at and string.sub(p, at)
end

local function renewed(p, ties, locks)
  local name = string.match(ties, '"unique":"([%w_.:@%%-]+)"')
  if not name or locks == '' then return nil end -- on a cluster it is in another slot: cluster/queue.py
  local lock = locks .. name
  local owner = redis.call('GET', lock)
  if not owner or not string.find(p, '"uuid":"' .. owner .. '"', 1, true) then return nil end
  local hold = math.min(tonumber(string.match(ties, '"hold":([%d.]+)')) or 86400, 3153600000) -- a century: EXPIRE takes it
  return function() redis.call('EXPIRE', lock, string.format('%.0f', math.ceil(hold))) end
end

-- The payload to lease, and a function to call once it is leased (or nil). False: it was cancelled or moved.
local function taken(p, entries, locks)
  local ties = ties_of(p)
  if not ties then return p, nil end
  local found
  for issue, name in string.gmatch(ties, '"key":"(%d%d%d%d%d%.%w+) ([%w_.:@%%-]+)"') do
    found = name
    local entry = redis.call('HGET', entries, name)
    if entry and string.sub(entry, 1, #issue + 1) == issue .. ' ' then
      local at = string.find(p, '"key":"' .. issue .. ' ', #p - #ties + 1, true)
      local text = string.sub(p, 1, at + 6) .. 'taken' .. string.sub(p, at + 12)
      return text, function() redis.call('HDEL', entries, name) end
    end
  end
  if found then return false end
  return p, renewed(p, ties, locks)
end
