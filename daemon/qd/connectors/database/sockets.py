"""The descriptor behind a driver's connection."""

from __future__ import annotations

from typing import Any


def socket_of(raw: Any) -> int:
    """The descriptor of a driver's connection, -1: it has none."""
    sock = getattr(raw, "_sock", None)
    try:
        return int(sock.fileno() if sock is not None else raw.fileno())
    except Exception:  # closed
        return -1
