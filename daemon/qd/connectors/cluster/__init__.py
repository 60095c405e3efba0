"""Redis Cluster: a keyspace whose names are spread over many servers, and the queue on it.

names, nodes          what a key is called there, and its slot; which server has a slot
wire, scanning        the keyspace: one connection to each server; SCAN over all of them
exchange              commands to many servers at once, followed where a slot has gone
steps                 a step whose keys stand in several slots: which calls it is there
answers               the answer for a job; left on another node while its own is away
ends, sending         what stands in other slots is noted and done after; jobs that are sent once
queue, waiting        turn and wait over several slots
beating, ticking      the keeper's beat; ticks of the schedule
"""
