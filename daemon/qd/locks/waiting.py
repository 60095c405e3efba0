"""Calls that block, for coroutines: in a thread, and never left behind half-way by a task that is cancelled.

Who awaits has loaded asyncio; who does not need not.

How many coroutines of an event loop stand in line for a lock at a time: each has a thread, a connection and two ends of a
pipe meanwhile. The others wait before the door, in the order in which they came.

A lock has a door of its own: who waits for one lock keeps nobody from another, which its owner may need.

Waiting for a lock, in line.

    take    it is ours for a moment, or we stand in line and are told when it falls free by itself
    keep    we heard of it in time: it is ours for its ttl. A take that a slow server does when nobody waits for the answer
            any more is over by itself soon
    wait    until it is handed to us (a token in a list of our own), and half a second at most
    take    again: so the others see that we are still there; who does not ask for 1.5 s is passed over

Whatever ends the wait, an alarm or Ctrl-C, leaves the line, and gives back what was handed to us meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from qd.errors import ConnectionLost, ServerRefused
from qd.locks.lease import AWAY, PATIENCE, LockServer
from qd.store.locks import THERE, LockReply, Mutex

if TYPE_CHECKING:
    import asyncio


T = TypeVar("T")


def shared(body: Callable[[], T]) -> asyncio.Future[T]:
    """A short call, in one of the threads that all share."""
    import asyncio

    return asyncio.get_running_loop().run_in_executor(None, body)


def own_thread(body: Callable[[], T]) -> asyncio.Future[T]:
    """A call that may last long, in a thread of its own: those that all share stay free for who gives a lock back."""
    import asyncio
    from concurrent.futures import Future

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(body())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="qd-lock-wait", daemon=True).start()
    return asyncio.wrap_future(future)


async def settled(future: asyncio.Future[T], cancel: Callable[[], object] = lambda: None) -> T:
    """Its result. Cancelled meanwhile: `cancel` is called, and the end of the call waited for still, before that is
    raised."""
    import asyncio

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not future.done():
            cancel()
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


async def aside(body: Callable[[], T]) -> T:
    """What a short call returns, whose end is waited for in any case."""
    return await settled(shared(body))


MOST = 16


class WaiterLimit:
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


_doors: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[object, WaiterLimit]] = WeakKeyDictionary()


def door_of(lock: object) -> WaiterLimit:
    """That of the running event loop. It is there while somebody uses it."""
    import asyncio

    doors = _doors.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return doors.setdefault(lock, WaiterLimit())


BETWEEN = 0.2  # seconds between two tries to reach a server that is away
COURTESY = 0.2  # seconds that leaving the line may take: should it fail, we are passed over soon
MOMENT = 1.5  # seconds for which a lock is taken at first
APART = 0.02  # seconds between those who look whether a lock has fallen free by itself: the first one is to find it


class TakenLock(NamedTuple):
    """token: of this taking. began: monotonic seconds from which its ttl is reckoned; the server's begins later."""

    token: int
    began: float


class Cancel:
    """Ends a wait from another thread."""

    def __init__(self) -> None:
        self.reads, self._writes = os.pipe()
        self.told = False

    def tell(self) -> None:
        self.told = True
        os.write(self._writes, b"x")

    def close(self) -> None:
        os.close(self.reads)
        os.close(self._writes)


class RetryPatience:
    """How long one waits, and how long a server may be away meanwhile. timeout: seconds, None: without end."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._away: float | None = None
        self._asked = False

    @property
    def left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    @property
    def call(self) -> float:
        """Seconds that a call to the server may take."""
        return min(PATIENCE, max(0.5, self.left))

    def answered(self) -> None:
        self._asked, self._away = True, None

    def bear(self, error: ConnectionLost) -> None:
        """Raise it when the server has never answered, when the wait is over, and after AWAY seconds; else pause."""
        self._away = self._away or time.monotonic()
        if not self._asked or self.left <= 0 or time.monotonic() - self._away > AWAY:
            raise error
        time.sleep(min(BETWEEN, max(0.001, self.left)))


class Wait:
    """One wait of one owner for `seconds` of a lock."""

    def __init__(
        self, place: LockServer, mutex: Mutex, seconds: float, timeout: float | None, cancel: Cancel | None
    ) -> None:
        self._place, self._mutex, self._seconds, self._cancel = place, mutex, seconds, cancel
        self._patience = RetryPatience(timeout)
        self._came = 0

    def over(self) -> TakenLock | LockReply:
        """The lock, or why not. Raises ConnectionLost, ServerRefused, and whatever ends the wait; `leave` is next then."""
        while True:
            try:
                if (answer := self._step()) is not None:
                    return answer
            except ConnectionLost as error:
                self._patience.bear(error)

    def leave(self) -> None:
        """Out of the line, and out of the lock where we have it."""
        with suppress(ConnectionLost, ServerRefused):
            self._place.ask(self._mutex.give, COURTESY)

    def _step(self) -> TakenLock | LockReply | None:
        """None: not yet."""
        stay = self._patience.left > 0 and not (self._cancel and self._cancel.told)
        began, moment = time.monotonic(), min(MOMENT, self._seconds)
        answer = self._place.ask(
            lambda store: self._mutex.take(store, moment, stay=stay, came=self._came), self._patience.call
        )
        self._patience.answered()
        if answer.token:
            return TakenLock(answer.token, began) if moment == self._seconds else self._kept(answer.token)
        if not stay:
            return answer
        self._came = answer.came
        wake = self._cancel.reads if self._cancel else -1
        with self._place.within(self._patience.call):
            self._mutex.wait(self._place.store, self._pause(answer), wake)
        return None

    def _kept(self, token: int) -> TakenLock | None:
        """None: the moment was over already; it is taken again. Is there no answer, it is over as well: that is waited for,
        so that nobody prolongs it who is late."""
        began = time.monotonic()
        ours = self._place.ask(lambda store: self._mutex.extend(store, self._seconds), max(MOMENT, self._patience.call))
        return TakenLock(token, began) if ours else None

    def _pause(self, answer: LockReply) -> float:
        """Seconds until we ask again."""
        pause = THERE / 3
        if answer.left is not None:
            pause = min(pause, answer.left + 0.001 + APART * min(answer.front, 10))
        return max(0.001, min(pause, self._patience.left))
