-- Free a place, if this holder still has it, and delete it from the owner's record: see places.lua.
-- KEYS places, record; no record: it is in another slot of a cluster
-- ARGV owner, holder, the places' name in the record
-- Returns 1, or 0 if this holder does not have it.
if KEYS[2] then leave(KEYS[2], ARGV[3], ARGV[2]) end
return leave(KEYS[1], ARGV[1], ARGV[2])
