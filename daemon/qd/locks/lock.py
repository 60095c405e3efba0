"""A named lock on a shared server: app.lock(...).

    acquire     take it, or wait in line until it is handed over
    held        lease.py: until its ttl expires; with renew=True a thread extends it, also while an event loop is blocked
    release     hand it to the first waiter, if it is still ours

An object holds the lock once at a time; each thread or task makes its own with app.lock(). A wait:

    take        we get the lock for MOMENT seconds, or a place in line and the time until the lock expires
    keep        extend it to its ttl, since the reply came in time. If a slow server takes it for a client that no longer
                waits, it expires soon
    wait        for at most half a second until the lock is handed to us (a token in our own list)
    take        again, which shows that we still wait; a waiter that does not call for 1.5 s is skipped

If an exception ends the wait, we leave the line and release a lock that was handed to us meanwhile.

Coroutines wait on the event loop's own connections (drivers/redis/aio.py). Where there are none, they wait in threads, and
a cancelled task waits until its thread's call has ended. Each lock has a limit of waiting coroutines per event loop, since
each needs a connection. asyncio is imported only by apps that use it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

from qd.drivers.connections import Connections
from qd.drivers.pausing import Pausing, block_on, wait_for, wait_to_end
from qd.errors import ConnectionLost, EndJob, LockError, LockLost, LockTaken, ServerRefused, Unreachable
from qd.events import Listeners
from qd.events import LockLost as LostEvent
from qd.jobs.plan import Duration
from qd.locks.lease import (
    COURTESY,
    HeldLock,
    LockServer,
    Owner,
    RetryPatience,
    Threads,
    checked_name,
    checked_timeout,
    checked_ttl,
    log,
    new_owner,
    read_owner,
    renewals,
    uninterrupted,
)
from qd.process.shield import shield
from qd.store.locks import THERE, LockReply, Mutex

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor


MOST = 16  # coroutines of an event loop that wait for a lock at a time
MOMENT = 1.5  # seconds for which a lock is taken at first
APART = 0.02  # seconds between the checks of two waiters whether a lock has expired: the first in line should find it


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


class Lock:
    """One owner at a time, across all hosts. Made by app.lock(); for `with` and `async with`.

    Args:
        name: What the owners share.
        ttl: Seconds until it expires if it is not released.
        renew: Extend it while this process lives and holds it.
        timeout: Seconds that `with` waits; None: forever.
    """

    def __init__(
        self,
        connections: Connections,
        listeners: Listeners,
        name: str,
        ttl: Duration,
        *,
        renew: bool = False,
        timeout: Duration | None = None,
        connection: str | None = None,
    ) -> None:
        self.name, self.ttl, self.renew = checked_name("lock", name), checked_ttl(name, ttl), renew
        self._timeout = checked_timeout(f"the lock '{name}'", timeout)
        self._server, self._listeners = LockServer(connections, connection), listeners
        self._held: HeldLock | None = None
        self._last: HeldLock | None = None  # also after its release
        self._refused_by = ""

    # -- acquire and release

    def acquire(self, timeout: Duration | None = None, blocking: bool = True) -> bool:
        """Take the lock. Waiters are served in order.

        Args:
            timeout: Seconds to wait at most; None: forever.
            blocking: False takes it only if it is free and has no waiters.

        Returns:
            Whether this object holds it now.

        Raises:
            ConnectionLost: The server was unreachable for too long.
            LockError: This object already holds it.
        """
        seconds = checked_timeout(f"the lock '{self.name}'", timeout) if blocking else 0.0
        return block_on(self._acquire(seconds))

    def _acquire(self, seconds: float | None, threads: Threads = lambda: None) -> Pausing[bool]:
        if self._held is not None and self._held.ours and not self._held.look():
            way = f'make one for each taking with app.lock("{self.name}", ...)'
            raise LockError(f"the lock '{self.name}' is held already by this object: {way}")
        mutex = Mutex(self.name, new_owner())
        try:
            found = yield from self._in_line(mutex, seconds, threads)
            if isinstance(found, HeldLock):
                with shield:
                    self._held = self._last = found
                    if self.renew:
                        renewals(found).add(found)
                return True
        except Unreachable:
            raise  # nothing was sent, and nothing will be
        except BaseException:  # usually an alarm: the caller will not learn that it was taken
            self._forget()
            with suppress(ConnectionLost, ServerRefused):  # leave the line, and release the lock if we have it
                yield from self._server.ask(mutex.give, COURTESY)
            raise
        self._refused_by = found.by
        return False

    def _in_line(self, mutex: Mutex, timeout: float | None, threads: Threads) -> Pausing[HeldLock | LockReply]:
        """The lock, or the reply that refused it. Raises ConnectionLost, ServerRefused and what interrupts the wait."""
        patience, moment, came = RetryPatience(timeout), min(MOMENT, self.ttl), 0
        while True:
            stay, began = patience.left > 0, time.monotonic()
            take = partial(mutex.take, seconds=moment, stay=stay, came=came)
            try:
                answer = yield from self._server.ask(take, patience.call_timeout)
                patience.answered()
                if answer.token and moment < self.ttl:
                    # Without a reply, wait until MOMENT has passed as well, so that a late call cannot extend it.
                    keep, began = partial(mutex.extend, seconds=self.ttl), time.monotonic()
                    if not (yield from self._server.ask(keep, max(MOMENT, patience.call_timeout))):
                        continue  # MOMENT has passed, so it must be taken again
                if answer.token:
                    return HeldLock(self._server, mutex, self.ttl, answer.token, began, self._emit_lost)
                if not stay:
                    return answer
                came, pause = answer.came, min(THERE / 3, patience.left)
                if answer.left is not None:
                    pause = min(pause, answer.left + 0.001 + APART * min(answer.front, 10))
                yield self._server.waiting(mutex, max(0.001, pause), patience.call_timeout, threads)
            except ConnectionLost as error:
                yield from patience.bear(error)

    def _forget(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            renewals(held).drop(held)

    def release(self) -> None:
        """Release the lock.

        Raises:
            LockLost: It was lost before: another process may have held it since.
            LockError: This object does not hold it, or this process is a fork of the holder.
            ConnectionLost: The outcome is unknown. Call it again.
        """
        held = self._mine("release")
        try:
            uninterrupted(lambda: block_on(self._give()))
        finally:
            held.report_loss()

    def _give(self) -> Pausing[None]:
        if (held := self._held) is None:
            return
        renewals(held).drop(held)
        try:
            yield from held.give()
        except LockLost:
            self._held = None
            raise
        self._held = None

    def extend(self, seconds: Duration | None = None) -> None:
        """Hold the lock for `seconds` from now on (None: its ttl). Raises the same errors as release()."""
        held, steps = self._extend(seconds)
        try:
            with shield:
                block_on(steps)
        finally:
            self._extended(held)
        held.check()

    def _extend(self, seconds: Duration | None) -> tuple[HeldLock, Pausing[None]]:
        length = self.ttl if seconds is None else checked_ttl(self.name, seconds, "extend")
        held = self._mine("extend")
        return held, held.extend(length)

    def _extended(self, held: HeldLock) -> None:
        held.report_loss()
        if self.renew and not held.lost:
            renewals(held).add(held)  # its due time has changed

    def _mine(self, act: str) -> HeldLock:
        held = self._held
        if held is None:
            raise LockError(f"the lock '{self.name}' is not held by this object: {act}() comes after acquire()")
        if not held.ours:
            way = f"of which this one ({os.getpid()}) is a copy: {act}() is for that one"
            raise LockError(f"the lock '{self.name}' is held by process {held.pid}, {way}")
        return held

    def _emit_lost(self, token: int) -> None:
        if self._listeners.has(LostEvent):
            self._listeners.emit(LostEvent(self.name, token))

    # -- state

    @property
    def held(self) -> bool:
        """Whether this object holds the lock. Makes no call to the server, so a loss is noticed late."""
        return self._held is not None and self._held.ours and not self._held.look()

    @property
    def lost(self) -> bool:
        """Whether it was lost since it was taken, as far as this process knows: with renew=True within ttl / 3."""
        return self._last is not None and self._last.ours and self._last.look()

    @property
    def token(self) -> int:
        """The fencing token of the last acquire(): larger than all earlier tokens of this name. Raises LockError if it was
        never taken."""
        if self._last is None:
            raise LockError(f"the lock '{self.name}' was never taken by this object: it has no token")
        return self._last.token

    def owner(self) -> Owner | None:
        """The current owner, in any process; None if the lock is free. Raises ConnectionLost."""
        by = block_on(self._server.ask(Mutex(self.name, "").by))
        return None if by is None else read_owner(by)

    def locked(self) -> bool:
        """Whether any process has it now. Raises ConnectionLost."""
        return self.owner() is not None

    # -- with

    def __enter__(self) -> Lock:
        """Raises LockTaken after `timeout`."""
        try:
            if not block_on(self._acquire(self._timeout)):
                raise self._taken()
            return self
        except (EndJob, KeyboardInterrupt):  # that came last of all
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raises LockLost, but the block's own error goes first."""
        try:
            uninterrupted(lambda: block_on(self._leave(error)))
        finally:
            if self._last is not None and self._last.ours:
                self._last.report_loss()

    def _leave(self, error: BaseException | None) -> Pausing[None]:
        held = self._held
        if held is None or not held.ours:
            return  # released in the block; or a copy of the process, which has nothing to give back
        try:
            yield from self._give()
        except LockLost:
            if error is None:
                raise
        except (ConnectionLost, ServerRefused) as away:
            self._stays(held, away, error)

    def _stays(self, held: HeldLock, away: Exception, error: BaseException | None) -> None:
        """It could not be released. Its work was done in time, unless its ttl has expired by now."""
        self._held = None
        if time.monotonic() >= held.until:
            held.lose()
            if error is None:
                held.check()
        log.warning("the lock '%s' could not be released and stays locked until its ttl expires: %s", self.name, away)

    def _taken(self) -> LockTaken:
        by = f": {read_owner(self._refused_by)} has it" if self._refused_by else ""
        return LockTaken(f"the lock '{self.name}' was not free within {self._timeout:g} s{by}")

    # -- the same for coroutines, without blocking the event loop

    async def aacquire(self, timeout: Duration | None = None, blocking: bool = True) -> bool:
        """As acquire."""
        seconds = checked_timeout(f"the lock '{self.name}'", timeout) if blocking else 0.0
        if await wait_for(self._acquire(0.0)):
            return True
        if seconds is not None and seconds <= 0:
            return False
        limit, began = waiter_limit((self._server.identity, self.name)), time.monotonic()
        if not await limit.enter(seconds):
            return False
        try:
            left = None if seconds is None else max(0.0, began + seconds - time.monotonic())
            return await wait_for(self._acquire(left, lambda: limit.threads))
        finally:
            limit.room.release()

    async def arelease(self) -> None:
        """As release."""
        held = self._mine("release")
        try:
            await wait_to_end(self._give())
        finally:
            held.report_loss()

    async def aextend(self, seconds: Duration | None = None) -> None:
        """As extend."""
        held, steps = self._extend(seconds)
        try:
            await wait_to_end(steps)
        finally:
            self._extended(held)
        held.check()

    async def aowner(self) -> Owner | None:
        """As owner."""
        by = await wait_for(self._server.ask(Mutex(self.name, "").by))
        return None if by is None else read_owner(by)

    async def __aenter__(self) -> Lock:
        if not await self.aacquire(self._timeout):
            raise self._taken()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await wait_to_end(self._leave(error))
        finally:
            if self._last is not None and self._last.ours:
                self._last.report_loss()

    def __repr__(self) -> str:
        return f"<lock '{self.name}'{' held' if self.held else ''}>"
