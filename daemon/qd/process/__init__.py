"""Processes: forks, signals, shared memory, /proc.

channels       messages between master and children: MessageSender, MessageReceiver, OrderPipe, OrderReader
counters       shared memory: what workers have counted, by connection, queue and job
descriptors    which file a descriptor refers to; which of several are readable
exit_codes     every exit code and reason to stop
fork           fork, reap, kill a child with its group and with what its jobs left running; QD_OWNER
liveness       liveness files for health checks
proc           facts of the kernel about processes: /proc, cgroups, prctl, macOS
scoreboard     shared memory: a header and 256 slots
shield         protects qd's own code from alarms
signals        signals as bytes in a mailbox
systemd        sd_notify
"""

SLOTS = 256
"""Children of a master at most. The seat of a job in its workers is slot + SLOTS x lane."""
