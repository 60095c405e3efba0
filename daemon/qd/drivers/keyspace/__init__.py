"""The base of every driver with workers: names of keys, and Lua scripts that work on them.

base       The Keyspace contract, and the Lua scripts as files.
keys       Every key qd writes, its type and bound.
queue      KeyspaceQueue: everything except the worker's turn and wait; the keeper's beat.
records    Batches, single jobs by id, ticks of the schedule.
sending    Jobs and effects as arguments of the scripts.
"""
