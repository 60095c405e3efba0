"""The scheduler: takes the ticks of the schedule, each exactly once.

connection    One connection: clock, claims, away and back.
due           When something is due; missed ticks. Pure.
entry_job     The job of an entry, made anew at each tick; user code guarded.
filters       The user's when/skip, asked in processes of their own.
overlaps      Leases of entries without_overlapping.
process       The scheduler's process.
report        Log, events and history of ticks.
runner        One run in its own process.
runs          Runs: forked, watched, reaped, told.
scheduler     Scheduler: due, taken, run, told.
ticks         How one tick is decided, claimed and sent; which runs wait for which.
"""
