"""The scheduler: takes the ticks of the schedule, each exactly once.

process       the scheduler's process, a child of the master
scheduler     Scheduler: poll, take due ticks, reap
connection    one connection: the server's clock, the state of entries, outages
due           when an entry is due; missed ticks. Pure
ticks         how one tick is claimed and reported; which runs wait for which
entry_job     the job of an entry, made again at each tick; user code guarded
filters       the user's when() and skip(), in processes of their own
runs          runs: forked, watched, reaped; leases of without_overlapping() entries
runner        one run in its own process
"""
