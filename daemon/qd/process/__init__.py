"""Processes: forks, signals, shared memory, /proc.

channels       Messages between master and children: Ear, Voice, Orders, Inbox.
descriptors    Which file a descriptor is; which can be read.
exit_codes     Every exit code and reason to stop.
fork           Forking, reaping, killing a child with its group.
liveness       Liveness files for health checks.
proc           What the kernel knows of processes: /proc, cgroups, prctl, macOS.
scoreboard     Shared memory: a header and 256 slots.
shield         Code of ours that no alarm may interrupt.
signals        Signals as bytes in a mailbox.
systemd        sd_notify.
"""
