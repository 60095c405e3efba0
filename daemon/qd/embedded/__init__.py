"""A real Valkey or Redis for one project: `url = "embedded:"` starts it when it is first used, and it outlives who did.

`home` is its files and its lock, `places` where its program and its socket are, `server` what is done with it.
"""

from qd.embedded.server import Status, resolve, revive, status, stop

__all__ = ["Status", "resolve", "revive", "status", "stop"]
