"""The keeper: one beat per second. It renews leases, requeues the jobs of the dead and moves due jobs; it runs none.

control_connection   the control connection, if it is not the connection of the jobs
controls             restart, pause and maintenance, requested with qd or with Laravel
dead_workers         requeues the jobs of dead workers and masters
keeper               Keeper: one beat per second; the retention of failed jobs
report               the report of this master
statistics           writes what the workers have counted, every 10 s
servers              unreachable servers, refused queues, missing permissions, the embedded server
"""
