-- What a turn rarely needs, put in front of take.lua: the parts of this function up to rarely_end.lua. Redis runs a script from
-- its start each time, and a function that is not called creates none of those inside.
local function rarely()
