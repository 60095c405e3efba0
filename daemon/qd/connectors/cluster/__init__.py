"""Redis Cluster: a keyspace whose names are spread over many servers, and the queue on it.

seeds, nodes          the url; which server has a slot
names                 what a key is called there, and its slot
client, exchange      one connection to each server; commands to many servers at once, redirections followed
ends, sending         effects on other slots are noted and done afterwards; jobs that are sent once
answers               the answer for a job; left on another node while its own is away
keyspace              a script whose keys are in several slots, as the calls it becomes; the keeper's beat
queue, waiting        turn and wait over several slots
"""
