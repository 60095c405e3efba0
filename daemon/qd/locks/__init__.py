"""app.lock and app.limiter.

lease      A held lock: renewed, extended, released, lost; names and owners.
limiter    Limiter.
lock       Lock.
waiting    Waiting for a lock, in threads and in coroutines.
"""

from __future__ import annotations

from qd.locks.lease import Owner
from qd.locks.limiter import Limiter
from qd.locks.lock import Lock

__all__ = ["Limiter", "Lock", "Owner"]
