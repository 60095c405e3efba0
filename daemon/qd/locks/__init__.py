"""app.lock and app.limiter.

lease      A lock in hand: renewed, extended, lost; names and owners.
limiter    Limiter.
lock       Lock.
waiting    Waiting in line, in threads and in coroutines.
"""

from __future__ import annotations

from qd.locks.lease import Owner
from qd.locks.limiter import Limiter
from qd.locks.lock import Lock

__all__ = ["Limiter", "Lock", "Owner"]
