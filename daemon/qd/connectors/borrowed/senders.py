"""Who sends an outbox, so named that others on its host can tell that it is dead."""

from __future__ import annotations

import os
import secrets
import socket

from qd.process import vitals


def own_name() -> str:
    """HOST BOOT NAMESPACE PID START RANDOM, with slashes between."""
    pid = os.getpid()
    parts = (here(), str(pid), str(vitals.start_time(pid) or ""), secrets.token_hex(6))
    return "/".join(parts)


def here() -> str:
    return "/".join((socket.gethostname().replace("/", "_"), vitals.boot_id(), vitals.pid_namespace()))


def is_dead(name: str) -> bool:
    """For certain: of this host, boot and pid namespace, and not there any more."""
    place, pid, start, _ = name.rsplit("/", 3) if name.count("/") >= 3 else ("", "", "", "")
    if place != here() or not (pid.isdecimal() and start.isdecimal()):
        return False
    return vitals.alive(int(pid), int(start)) is False
