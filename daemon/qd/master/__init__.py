"""The master: forks, reaps and kills children. It uses the kernel, but no server and no app.

children          workers and schedulers in their slots, their deaths, the backoff of spawns
code              MasterPlan, ChildContext, Assignment, and the imports of the app
keeper_process    the master's side of the keeper
master            Master: the loop and the signals
postmortem        whether the OOM killer took a child; the stack of its job
reload            rolling change from one import of the app to the next, unless the qd on disk has changed
reports           handles the messages and the ends of children
spawn             forks, and keeps the number of children
state             State, shared by the parts of the master; the steps of a stop
status            log lines, ps title, systemd status, liveness file
watchdog          kills overdue jobs, silent workers, and jobs that block the event loop
"""
