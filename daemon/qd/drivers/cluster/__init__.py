"""A Redis Cluster: each queue in a slot of its own.

client      Commands to many servers at once, redirections followed.
deferred    What a step does in other slots: noted, done once, finished by a keeper.
keyspace    ClusterKeyspace: each script as calls per slot.
nodes       Slots and the servers that have them.
queue       ClusterQueue: turn and wait over several slots.
"""

from __future__ import annotations
