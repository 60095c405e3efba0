-- Which ready payload a worker takes, put in front of turn.lua. A Laravel object job is for PHP only and stays where it
-- is: taken and handed back, it would be back in qd's hands the moment it is due, while a PHP worker looks at the queue
-- only every few seconds (--sleep) and would never meet it.

-- For certain one of PHP's: nothing was opened before this key, or nothing but the payload itself is closed behind it,
-- so it stands on the top level. In doubt it is taken, read and handed back.
local function foreign(p)
  if not string.find(p, [[Illuminate\\Queue\\CallQueuedHandler@call"]], 1, true) then return false end -- the quick no
  local at = string.find(p, [["job":"Illuminate\\Queue\\CallQueuedHandler@call"]], 1, true)
  if not at then return false end
  local opened = string.find(p, '[{%[]', 2)
  return not opened or opened > at or string.find(p, '^[^{}%[%]]*}%s*$', at) ~= nil
end

-- The first payload that may be ours, and whether it is the head. nil: none. When too many of PHP's stand in front (100
-- payloads, or 256 KB of them), their first is taken after all: its worker hands it back with a delay, and so clears the view.
local function pick(ready)
  local head = redis.call('LINDEX', ready, 0)
  if not head or not foreign(head) then return head, true end
  local seen = #head
  for k = 1, 99 do
    local p = redis.call('LINDEX', ready, k)
    if not p then return nil end
    if not foreign(p) then return p, false end
    seen = seen + #p
    if seen > 262144 then break end
  end
  return head, true
end
