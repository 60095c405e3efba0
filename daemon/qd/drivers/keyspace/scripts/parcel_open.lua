-- Between this and parcel_close.lua stands the script that answers a job, as it is.
local function answer()
