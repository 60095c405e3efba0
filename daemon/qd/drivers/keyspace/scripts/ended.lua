-- What the end of a job does beside taking it away, where that is done beside this script, in one transaction with it.
-- KEYS those of effects   ARGV effects (see effects.lua)
effects(TRY, 1, 1)
effects(DO, 1, 1)
return 1
