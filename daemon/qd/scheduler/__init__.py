"""The schedule as it runs: ticks claimed, jobs sent, callables and commands run. A child of `qd work`'s master, and the
commands of `qd schedule`.

serve, loop           the process; the schedule as it runs
reach, claims         one connection: clock, entries; where each stands and how a tick is taken
moments, taking       what is due; whether a tick runs, its claim, what follows
jobs, sweeping        the job of an entry; fields that nobody needs
runs, runner, record  functions and commands: all, one, and what it tells
command, tree         one line of the shell; the end of all that it started
lanes, overlaps       what waits for what; without_overlapping
asking, guard         the user's filters, and other code of the user's, kept from doing harm
telling, keeping      what is said of a tick, and kept
"""
