"""A Redis Cluster: each queue in a slot of its own.

client      ClusterClient: commands to many servers at once; follows redirections.
deferred    Effects of a step in other slots: noted, done once, finished by a keeper.
keyspace    ClusterKeyspace: converts each script to calls per slot.
nodes       Key names, slots and the servers that have them.
queue       ClusterQueue: turn and wait over several slots.
"""
