"""app.lock and app.limiter."""

from __future__ import annotations

from qd.locks.lease import Owner
from qd.locks.limiter import Limiter
from qd.locks.lock import Lock

__all__ = ["Limiter", "Lock", "Owner"]
