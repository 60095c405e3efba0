"""The descriptor behind a driver's connection.

Which file a descriptor's number stands for (a job can close what is not its own, and another file takes the number),
and which of several can be read.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections.abc import Sequence
from typing import Any


def socket_of(raw: Any) -> int:
    """The descriptor of a driver's connection, -1: it has none."""
    sock = getattr(raw, "_sock", None)
    try:
        return int(sock.fileno() if sock is not None else raw.fileno())
    except Exception:  # closed
        return -1


Identity = tuple[int, int]  # device and inode


def identity(fd: int) -> Identity | None:
    """None: the number is nobody's."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def close(fd: int, ours: Identity | None) -> None:
    """Close it where it is still the file `ours`: its number may be somebody else's by now."""
    if ours is not None and identity(fd) == ours:
        with contextlib.suppress(OSError):
            os.close(fd)


def ready_of(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Which of them can be read within `seconds`; one below 0 is none. Not select(): a job may have opened thousands."""
    poll = select.poll()
    for fd in descriptors:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0, math.ceil(seconds * 1000)))]
