"""How many coroutines of an event loop stand in line for a lock at a time: each has a thread, a connection and two ends of a
pipe meanwhile. The others wait before the door, in the order in which they came.

A lock has a door of its own: who waits for one lock keeps nobody from another, which its owner may need.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

if TYPE_CHECKING:
    import asyncio

MOST = 16


class Door:
    """Of one event loop, and used in its thread alone."""

    def __init__(self) -> None:
        self.inside = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, seconds: float | None) -> bool:
        """False: not within `seconds` (None: without end). Who has entered leaves."""
        import asyncio

        if self.inside < MOST:
            self.inside += 1
            return True
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await asyncio.wait([turn], timeout=seconds)
        except asyncio.CancelledError:
            if turn.done():
                self.leave()
            raise
        finally:
            if not turn.done():
                self.waiting.remove(turn)
        return turn.done()

    def leave(self) -> None:
        """The place is the next one's."""
        if self.waiting:
            self.waiting.popleft().set_result(None)
        else:
            self.inside -= 1


_doors: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[object, Door]] = WeakKeyDictionary()


def door_of(lock: object) -> Door:
    """That of the running event loop. It is there while somebody uses it."""
    import asyncio

    doors = _doors.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return doors.setdefault(lock, Door())
