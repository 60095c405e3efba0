"""Locks and limits as a tool for any code of a project: app.lock(...) and app.limiter(...). Loaded when they are used."""

from qd.locks.limiter import Limiter
from qd.locks.lock import Lock
from qd.locks.places import Owner

__all__ = ["Limiter", "Lock", "Owner"]
