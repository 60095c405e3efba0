-- Whether the entry of a keyed job belongs to the job `id`.
local function keyed_by(entry, id)
  return string.find(entry, id, 1, true) ~= nil
end
