-- Which ready payload a worker takes, put in front of turn.lua and lanes.lua. A Laravel object job is for PHP only and is not touched: if qd
-- took it and handed it back, qd would take it again as soon as it is due, while a PHP worker polls only every few seconds
-- (--sleep) and would never see it.

-- Certainly a job for PHP: no bracket opens before this key, or only the payload's own closes after it, so the key is on the
-- top level. In doubt the job is taken, read and handed back.
local function foreign(p)
  if not string.find(p, [[Illuminate\\Queue\\CallQueuedHandler@call"]], 1, true) then return false end -- the quick no
  local at = string.find(p, [["job":"Illuminate\\Queue\\CallQueuedHandler@call"]], 1, true)
  if not at then return false end
  local opened = string.find(p, '[{%[]', 2)
  return not opened or opened > at or string.find(p, '^[^{}%[%]]*}%s*$', at) ~= nil
end

-- The first payload that may be for qd, and whether it is the head. nil: none. If too many jobs for PHP are in front (100, or
-- 256 KB), the first of them is taken: its worker hands it back with a delay, which clears the head.
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
