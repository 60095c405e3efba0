"""The master: forks, reaps and kills on time. It knows the kernel, no server and no app.

children          Workers and schedulers as the master keeps them: spawned, dead, slow to boot.
code              The contract with children: Plan, what a child is given, one import of the app (Code).
keeper_process    The master's side of the keeper.
master            Master: the loop and the signals.
messages          What children tell, checked before it is believed.
postmortem        Was it the OOM killer; the last stack.
reap              Ended children, taken and told.
reload            Rolling change from one import of the app to the next.
shutdown          The clock and the steps of a stop.
spawn             Keeping the number; forks.
state             State: what the parts of the master share; the clock of a stop.
status            Log lines, ps title, systemd status, liveness file.
watchdog          Overdue jobs, silent workers, scribbled memory.
"""
