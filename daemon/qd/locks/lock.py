"""A lock under a name, on the server that all share: app.lock(...).

    acquire     waiting.py: take it, or stand in line until it is handed over
    held        hold.py: until its ttl is over; with renew=True renewal.py goes on with it
    release     given to the next one in line, when it is still ours

An object stands for one taking at a time; another thread or task asks the app for an object of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qd.drivers.connections import Connections
from qd.errors import ConnectionLost, EndJob, LockError, LockLost, LockTaken, ServerRefused, Unreachable
from qd.events import Listeners
from qd.events import LockLost as LostEvent
from qd.jobs.plan import Duration
from qd.locks.lease import (
    HeldLock,
    LockServer,
    Owner,
    checked_name,
    checked_timeout,
    checked_ttl,
    log,
    new_owner,
    read_owner,
    renewals,
    surely,
)
from qd.locks.waiting import Cancel, TakenLock, Wait, aside, door_of, own_thread, settled, shared
from qd.process.shield import shield
from qd.store.locks import Mutex

if TYPE_CHECKING:
    import asyncio


class Lock:
    """One at a time, on all hosts together. Made by app.lock; it may be used with `with` and `async with`.

    name: what they share. ttl: seconds after which it falls free when nobody gives it back. renew: it is extended while
    this process lives and holds it. timeout: seconds that `with` waits for it; None: without end.
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
        self._place, self._listeners = LockServer(connections, connection), listeners
        self._hold: HeldLock | None = None
        self._last: HeldLock | None = None  # also after it was given back
        self._refused_by = ""

    # -- taking and giving back

    def acquire(self, timeout: Duration | None = None, blocking: bool = True) -> bool:
        """Take it, waiting `timeout` seconds at most (None: without end), in the order in which all who wait have come.
        blocking=False: only when it is free and nobody waits. False: another has it.

        Raises ConnectionLost when no server is reached, and when it stays away; LockError: this object holds it already.
        """
        seconds = checked_timeout(f"the lock '{self.name}'", timeout) if blocking else 0.0
        return self._acquire(seconds, None)

    def _acquire(self, seconds: float | None, cancel: Cancel | None) -> bool:
        if self._hold is not None and self._hold.ours and not self._hold.look():
            raise LockError(
                f"the lock '{self.name}' is held already by this object: make one for each taking with"
                f' app.lock("{self.name}", ...)'
            )
        mutex = Mutex(self.name, new_owner())
        wait = Wait(self._place, mutex, self.ttl, seconds, cancel)
        try:
            taken = wait.over()
            if isinstance(taken, TakenLock):
                with shield:
                    self._keep(HeldLock(self._place, mutex, self.ttl, taken.token, taken.began, self._told))
                return True
        except Unreachable:
            raise  # nothing was sent, and nothing will be
        except BaseException:  # an alarm, most often: nobody will hear that it was taken
            self._forget()
            wait.leave()
            raise
        self._refused_by = taken.by
        return False

    def _keep(self, hold: HeldLock) -> None:
        self._hold = self._last = hold
        if self.renew:
            renewals(hold).add(hold)

    def _forget(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            renewals(hold).drop(hold)

    def release(self) -> None:
        """Give it back. Raises LockLost when it was not ours any more, also when that is known already; LockError when it
        was never held, or in a forked copy of the process that holds it; ConnectionLost: it may be called again."""
        hold = self._mine("release")
        try:
            surely(self._give)
        finally:
            hold.tell()

    def _give(self) -> None:
        hold = self._hold
        if hold is None:
            return
        renewals(hold).drop(hold)
        try:
            hold.give()
        except LockLost:
            self._hold = None
            raise
        self._hold = None

    def extend(self, seconds: Duration | None = None) -> None:
        """Hold it for `seconds` from now on; None: for its ttl. Raises as release."""
        length = self.ttl if seconds is None else checked_ttl(self.name, seconds, "extend")
        hold = self._mine("extend")
        hold.extend(length)
        if self.renew:
            renewals(hold).add(hold)  # it is due at another moment now

    def _mine(self, act: str) -> HeldLock:
        hold = self._hold
        if hold is None:
            raise LockError(f"the lock '{self.name}' is not held by this object: {act}() comes after acquire()")
        if not hold.ours:
            raise LockError(
                f"the lock '{self.name}' is held by process {hold.pid}, of which this one ({os.getpid()}) is a copy: {act}()"
                " is for that one"
            )
        return hold

    def _told(self, token: int) -> None:
        if self._listeners.has(LostEvent):
            self._listeners.emit(LostEvent(self.name, token))

    # -- asking

    @property
    def held(self) -> bool:
        """Whether this object holds it, as far as is known here; no server is asked."""
        return self._hold is not None and self._hold.ours and not self._hold.look()

    @property
    def lost(self) -> bool:
        """Whether it was lost since it was taken, as far as is known here: with renew=True within a third of the ttl."""
        return self._last is not None and self._last.ours and self._last.look()

    @property
    def token(self) -> int:
        """The fencing token of the last taking: larger than that of every taking of this name before. Raises LockError:
        it was never taken."""
        if self._last is None:
            raise LockError(f"the lock '{self.name}' was never taken by this object: it has no token")
        return self._last.token

    def owner(self) -> Owner | None:
        """Who has it now, whoever that is. None: nobody. Raises ConnectionLost."""
        by = self._place.ask(Mutex(self.name, "").by)
        return None if by is None else read_owner(by)

    def locked(self) -> bool:
        """Whether anybody has it now. Raises ConnectionLost."""
        return self.owner() is not None

    # -- with

    def __enter__(self) -> Lock:
        """Raises LockTaken after `timeout`."""
        try:
            if not self._acquire(self._timeout, None):
                raise self._taken()
            return self
        except (EndJob, KeyboardInterrupt):  # that came last of all
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises LockLost, but the block's own error goes first."""
        try:
            surely(lambda: self._leave(error))
        finally:
            if self._last is not None and self._last.ours:
                self._last.tell()

    def _leave(self, error: BaseException | None) -> None:
        hold = self._hold
        if hold is None or not hold.ours:
            return  # released in the block; or a copy of the process, which has nothing to give back
        try:
            self._give()
        except LockLost:
            if error is None:
                raise
        except (ConnectionLost, ServerRefused) as away:
            self._stays(hold, away, error)

    def _stays(self, hold: HeldLock, away: Exception, error: BaseException | None) -> None:
        """It could not be given back. What was done under it was done in time, unless its ttl is over by now."""
        self._hold = None
        if time.monotonic() >= hold.until:
            hold.lose()
            if error is None:
                hold.check()
        log.warning("the lock '%s' could not be given back and stays until its ttl is over: %s", self.name, away)

    def _taken(self) -> LockTaken:
        by = f": {read_owner(self._refused_by)} has it" if self._refused_by else ""
        return LockTaken(f"the lock '{self.name}' was not free within {self._timeout:g} s{by}")

    # -- the same for coroutines: the event loop goes on meanwhile

    async def aacquire(self, timeout: Duration | None = None, blocking: bool = True) -> bool:
        """As acquire."""
        return await self._aacquire(checked_timeout(f"the lock '{self.name}'", timeout) if blocking else 0.0)

    async def _aacquire(self, seconds: float | None) -> bool:
        if await self._awaited(shared(lambda: self._acquire(0.0, None)), lambda: None):
            return True
        if seconds is not None and seconds <= 0:
            return False
        door, began = door_of((self._place.server, self.name)), time.monotonic()
        if not await door.enter(seconds):
            return False
        try:
            return await self._stands(None if seconds is None else max(0.0, began + seconds - time.monotonic()))
        finally:
            door.leave()

    async def _stands(self, seconds: float | None) -> bool:
        """In line, in a thread of its own."""
        try:
            cancel = Cancel()
        except OSError as error:
            raise LockError(f"the lock '{self.name}' cannot be waited for: {error}; raise `ulimit -n`") from error
        try:
            return await self._awaited(own_thread(lambda: self._acquire(seconds, cancel)), cancel.tell)
        finally:
            cancel.close()

    async def _awaited(self, future: asyncio.Future[bool], cancel: Callable[[], object]) -> bool:
        """Whether it was taken. Cancelled: not, whatever the thread has done until then."""
        try:
            return await settled(future, cancel)
        except BaseException:
            if future.exception() is None and future.result():
                await aside(self._undo)
            raise

    def _undo(self) -> None:
        """It was taken for a task that is gone."""
        try:
            self.release()
        except (LockError, ConnectionLost, ServerRefused) as error:
            log.warning("the lock '%s' of a cancelled task could not be given back: %s", self.name, error)

    async def arelease(self) -> None:
        """As release."""
        await aside(self.release)

    async def aextend(self, seconds: Duration | None = None) -> None:
        """As extend."""
        await aside(lambda: self.extend(seconds))

    async def aowner(self) -> Owner | None:
        """As owner."""
        return await aside(self.owner)

    async def __aenter__(self) -> Lock:
        if not await self._aacquire(self._timeout):
            raise self._taken()
        return self

    async def __aexit__(self, *about: Any) -> None:
        await aside(lambda: self.__exit__(*about))

    def __repr__(self) -> str:
        return f"<lock '{self.name}'{' held' if self.held else ''}>"
