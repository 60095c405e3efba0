"""Connections whose server keeps jobs and nothing else (beanstalkd, SQS): what qd keeps beside them stands in a borrowed
keyspace, that of the control connection.

backend               the contract of such a server
sending               what every program does: send, look, clear
queue, counted        what a worker does besides; attempts that only the server has counted
keeping               what a keeper does besides
outbox, senders       what scripts have pushed, on its way to the server; who sends it
pushed                batches and ticks, whose jobs go that way
memory, opening       the keyspace, opened when it is first asked; how the manager opens all of it
"""
