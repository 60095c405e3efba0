"""What a connection keeps beside its ready jobs, on any keyspace.

base, keys            the contract, and the Lua scripts (scripts/*.lua); every key that qd writes
queue                 a queue, but for the turn of a worker and its wait
sending, keyed        many jobs at once; those that wait under a name
effects, batches      what goes with an answer; jobs that are counted together
jobs, ticks, beat     single jobs by their ids; the schedule; the keeper's call
"""
