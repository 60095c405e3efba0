-- A job that is tied to a lock or a key was leased beside this script: what becomes of its ties. In front: tied.lua.
-- KEYS keyed   ARGV payload, what the names of locks begin with
-- Returns the payload as it stands from now on; nil when it was cancelled or moved meanwhile, and is to be dropped.
local text, once_leased = taken(ARGV[1], KEYS[1], ARGV[2])
if once_leased then once_leased() end
return text or nil
