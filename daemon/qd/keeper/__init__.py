"""The keeper: one beat per second. It renews leases, requeues the jobs of the dead and moves due jobs; it runs none.

control         The control connection, which may be another one than that of the jobs.
dead_workers    Jobs of dead workers and masters go back; what they left running is ended.
keeper          Keeper: one beat a second.
operators       Restart, pause and maintenance as operators (and Laravel) ask for them.
report          What is told of this master.
servers         Servers away, queues refused, rights missing.
"""
