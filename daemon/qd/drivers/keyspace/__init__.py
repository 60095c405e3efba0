"""What every driver with workers is built on: names of keys, and Lua scripts that work on them.

base       Keyspace contract, and the Lua scripts as files.
keys       Every key qd writes, its type and bound.
queue      KeyspaceQueue: all of a queue but the worker's turn; the keeper's beat.
records    Batches, single jobs by id, ticks of the schedule.
sending    Jobs and effects as arguments of the scripts.
"""

from __future__ import annotations
