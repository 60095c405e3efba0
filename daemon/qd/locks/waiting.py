"""Waiting in line for a lock, in threads and in coroutines.

    take    we get the lock for MOMENT seconds, or a place in line and the time until the lock expires
    keep    extend it to its ttl, since the reply came in time. If a slow server takes it for a client that no longer waits,
            it expires soon
    wait    for at most half a second until the lock is handed to us (a token in our own list)
    take    again, which shows that we still wait; a waiter that does not call for 1.5 s is skipped

If an exception ends the wait, we leave the line and release a lock that was handed to us meanwhile.

Coroutines wait on the event loop's own connections (drivers/redis/aio.py). Where there are none, they wait in threads, and
a cancelled task waits until its thread's call has ended. Each lock has a limit of waiting coroutines per event loop, since
each needs a connection. asyncio is imported only by apps that use it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from qd.drivers.pausing import Pausing, sleep
from qd.errors import ConnectionLost, ServerRefused
from qd.locks.lease import AWAY, PATIENCE, LockServer, Threads
from qd.store.locks import THERE, LockReply, Mutex

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor


MOST = 16  # coroutines of an event loop that wait for a lock at a time


class WaiterLimit:
    """Limits how many coroutines of one event loop wait for a lock at once; the others follow in order."""

    def __init__(self) -> None:
        import asyncio  # loaded only by apps that use it

        self.room = asyncio.Semaphore(MOST)

    @cached_property
    def threads(self) -> Executor:
        """For drivers without asyncio. They end with this object."""
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(MOST, "qd-lock-wait")

    async def enter(self, seconds: float | None) -> bool:
        """False: there was no room within `seconds` (None: no limit). After True, release `room`."""
        import asyncio

        try:
            async with asyncio.timeout(seconds):
                return await self.room.acquire()
        except TimeoutError:
            return False


_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[object, WaiterLimit]] = WeakKeyDictionary()


def waiter_limit(lock: object) -> WaiterLimit:
    """The limit of a lock in the running event loop; it exists while it is used."""
    import asyncio

    limits = _limits.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return limits.setdefault(lock, WaiterLimit())


BETWEEN = 0.2  # seconds between two attempts to reach an unreachable server
COURTESY = 0.2  # seconds that leaving the line may take: if it fails, we are skipped soon
MOMENT = 1.5  # seconds for which a lock is taken at first
APART = 0.02  # seconds between the checks of two waiters whether a lock has expired: the first in line should find it


class TakenLock(NamedTuple):
    """token: the fencing token. began: monotonic time from which its ttl counts; the server's ttl starts later."""

    token: int
    began: float


class RetryPatience:
    """How long to wait, and how long the server may be unreachable meanwhile. timeout: seconds; None: no limit."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._away: float | None = None
        self._asked = False

    @property
    def left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    @property
    def call_timeout(self) -> float:
        """Seconds that a call to the server may take."""
        return min(PATIENCE, max(0.5, self.left))

    def answered(self) -> None:
        self._asked, self._away = True, None

    def bear(self, error: ConnectionLost) -> Pausing[None]:
        """Raise it if the server has never replied, the timeout has passed, or after AWAY seconds; else pause."""
        self._away = self._away or time.monotonic()
        if not self._asked or self.left <= 0 or time.monotonic() - self._away > AWAY:
            raise error
        yield sleep(min(BETWEEN, max(0.001, self.left)))


class Wait:
    """One wait of one owner for `seconds` of a lock."""

    def __init__(
        self, server: LockServer, mutex: Mutex, seconds: float, timeout: float | None, threads: Threads
    ) -> None:
        self._server, self._mutex, self._seconds, self._threads = server, mutex, seconds, threads
        self._patience = RetryPatience(timeout)
        self._came = 0

    def over(self) -> Pausing[TakenLock | LockReply]:
        """The lock, or the reply that refused it. Raises ConnectionLost, ServerRefused and what interrupts the wait; then
        call `leave`."""
        while True:
            try:
                if (answer := (yield from self._step())) is not None:
                    return answer
            except ConnectionLost as error:
                yield from self._patience.bear(error)

    def leave(self) -> Pausing[None]:
        """Leave the line, and release the lock if we have it."""
        with suppress(ConnectionLost, ServerRefused):
            yield from self._server.ask(self._mutex.give, COURTESY)

    def _step(self) -> Pausing[TakenLock | LockReply | None]:
        """None: not yet."""
        stay, began, moment = self._patience.left > 0, time.monotonic(), min(MOMENT, self._seconds)
        answer = yield from self._server.ask(
            lambda store: self._mutex.take(store, moment, stay=stay, came=self._came), self._patience.call_timeout
        )
        self._patience.answered()
        if answer.token:
            return TakenLock(answer.token, began) if moment == self._seconds else (yield from self._kept(answer.token))
        if not stay:
            return answer
        self._came = answer.came
        yield self._server.waiting(self._mutex, self._pause(answer), self._patience.call_timeout, self._threads)
        return None

    def _kept(self, token: int) -> Pausing[TakenLock | None]:
        """None: MOMENT has passed, so it must be taken again. Without a reply, wait until MOMENT has passed as well, so that
        a late call cannot extend it."""
        began = time.monotonic()
        ours = yield from self._server.ask(
            lambda store: self._mutex.extend(store, self._seconds), max(MOMENT, self._patience.call_timeout)
        )
        return TakenLock(token, began) if ours else None

    def _pause(self, answer: LockReply) -> float:
        """Seconds until the next take."""
        pause = THERE / 3
        if answer.left is not None:
            pause = min(pause, answer.left + 0.001 + APART * min(answer.front, 10))
        return max(0.001, min(pause, self._patience.left))
