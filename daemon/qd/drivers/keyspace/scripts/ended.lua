-- The effects of a job's end. The caller deletes the job itself, in the same transaction.
-- KEYS those of effects   ARGV effects (see effects.lua)
effects(TRY, 1, 1)
effects(DO, 1, 1)
return 1
