-- Effects only, in one slot of a cluster. In front: due, keep, batch, effects.
-- KEYS, ARGV   those of effects
effects(TRY, 1, 1)
effects(DO, 1, 1)
return 1
