"""The operating system's side: signals, children, shared memory, exits, vitals, systemd. No job, no Redis."""
