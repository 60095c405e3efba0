-- The script that answers a job is placed between this and delivery_close.lua.
local function answer()
