-- Put in front of scripts that put back jobs of lanes. A job that was cancelled while it was held gets a mark that makes the
-- next worker drop it.
-- marks: of cancelled jobs. Returns the text to put back, and the mark if the job is one of these.
local function stopped(marks, owner, member, text)
  for _, mark in ipairs(marks) do
    local _, at = string.find(member, '"rsv":"' .. mark .. '.', 1, true)
    if at and string.gsub(mark, '%.(%d+)%.%d+$', '/%1') == owner then
      return string.sub(member, 1, at) .. 'c' .. string.sub(member, string.find(member, '"', at, true), -1), mark
    end
  end
  return text
end
