-- The script that answers a job is placed between this and parcel_close.lua.
local function answer()
