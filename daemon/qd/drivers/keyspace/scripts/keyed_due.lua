-- When the job that waits under a name is due.
-- KEYS keyed   ARGV name
-- Returns unix seconds as text, or nil if none waits.
local old = entry_of(KEYS[1], ARGV[1])
return old and old.due
