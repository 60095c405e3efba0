"""File descriptors: the one behind a driver's connection, which file it refers to, and which of several are readable.

A job can close a descriptor that is not its own. Another file may then get the same number, so the identity is compared.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections.abc import Sequence
from typing import Any


def socket_of(raw: Any) -> int:
    """The descriptor of a driver's connection; -1 if it has none."""
    sock = getattr(raw, "_sock", None)
    try:
        return int(sock.fileno() if sock is not None else raw.fileno())
    except Exception:  # closed
        return -1


Identity = tuple[int, int]  # device and inode


def identity(file: int | str) -> Identity | None:
    """The identity of an open descriptor, or of the file at a path; None if it is closed, or missing."""
    try:
        found = os.fstat(file) if isinstance(file, int) else os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def close(fd: int, ours: Identity | None) -> None:
    """Close `fd` if it is still the file `ours`. By now the number may belong to another file."""
    if ours is not None and identity(fd) == ours:
        with contextlib.suppress(OSError):
            os.close(fd)


def ready_of(descriptors: Sequence[int], seconds: float) -> list[int]:
    """The descriptors that become readable within `seconds`. Negative ones are ignored."""
    # Not select(): a job may have opened thousands of descriptors.
    poll = select.poll()
    for fd in descriptors:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0, math.ceil(seconds * 1000)))]
