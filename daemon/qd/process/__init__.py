"""The operating system's side. No job, no Redis.

signals, shield       signals as bytes in a mailbox; code that no alarm tears apart
child, hands, talk    a fork's first steps, what it is given, how it talks with its master
scoreboard, allowed   what all of them know of each other; which queues are worked on
exits                 every exit code and reason to stop
vitals                what the kernel knows of processes
descriptors           whether a number is still the same file
systemd, live         signs of life for supervisors and health checks
"""
