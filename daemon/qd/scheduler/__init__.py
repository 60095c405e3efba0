"""The schedule as it runs: ticks claimed, jobs sent, callables and commands run. A child of `qd work`'s master, and the
commands of `qd schedule`."""
