"""The process that knows the server and nothing else: leases, due jobs, the jobs of the dead, stamps, the report.

loop                  one call about once a second
dead, leftover        jobs of the dead go back; what they have left running is ended before
rights, parts         may workers answer; servers and queues that are away while others are not
restarts, laravel     what operators ask for, here and by Laravel's own keys
maintenance           maintenance mode as this host sees it
control               the control connection, where it is not that of the jobs
private               the server of `embedded:`, started again after a kill
report, aged          what is told of this master; failed jobs that are too old
"""
