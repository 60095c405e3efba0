"""Which file a descriptor's number stands for. A job can close what is not its own, and another file takes the number."""

from __future__ import annotations

import contextlib
import os

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
