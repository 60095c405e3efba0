"""The keeper: one beat per second. It renews leases, requeues the jobs of the dead and moves due jobs; it runs none.

controls      restart, pause and maintenance, requested with qd or with Laravel
dead_workers  requeues the jobs of dead workers and masters
keeper        Keeper: one beat per second; the retention of failed jobs
recall        takes back what workers fetched ahead and did not start
report        the report of this master, its events, and what its workers have counted
servers       unreachable servers, refused queues, missing permissions, the control connection, the embedded server
"""
