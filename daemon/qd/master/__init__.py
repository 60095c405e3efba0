"""The process that supervisord or systemd sees. It knows the kernel only: no Redis, no app, no threads."""
