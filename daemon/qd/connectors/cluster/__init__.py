"""Redis Cluster: a keyspace whose names are spread over many servers, and the queue on it.

names      what a key is called there, and its slot
nodes      which server has a slot
exchange   commands to many servers at once, followed where a slot has gone
wire       the keyspace: one connection to each server
steps      what one server does in one step, where its keys stand on several: the parts, and how none is lost or doubled
queue      turn and wait over several slots
"""
