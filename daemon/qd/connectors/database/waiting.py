"""Waits on descriptors: bounded, and ended at once by another one."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any


def ready_of(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Which of them can be read within `seconds`; one below 0 is none. Not select(): a job may have opened thousands."""
    poll = select.poll()
    for fd in descriptors:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0, round(seconds * 1000 + 0.499)))]


def socket_of(raw: Any) -> int:
    """The descriptor of a driver's connection, -1: it has none."""
    sock = getattr(raw, "_sock", None)
    try:
        return int(sock.fileno() if sock is not None else raw.fileno())
    except Exception:  # closed
        return -1
