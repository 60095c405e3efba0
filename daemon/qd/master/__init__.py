"""The master: forks, reaps and kills children. It uses the kernel, but no server and no app.

children          workers and schedulers in their slots, their deaths, the backoff of spawns
code              MasterPlan, ChildContext, Assignment, and the imports of the app
keeper_process    the master's side of the keeper
lane_watch        kills workers whose jobs ignore their end or block the event loop
master            Master: the loop and the signals
messages          handles the messages of children
own_code          whether the qd on disk is still the one that runs
postmortem        whether the OOM killer took a child; the stack of its job
reap              reaps ended children
reload            rolling change from one import of the app to the next
shutdown          the steps of a stop
spawn             forks, and keeps the number of children
state             State, shared by the parts of the master; the clock of a stop
status            log lines, ps title, systemd status, liveness file
watchdog          kills overdue jobs and silent workers
"""
