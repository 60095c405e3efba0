"""So many in so long, under a name: app.limiter(...). The window is that of RateLimited of the same name."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from qd.drivers.connections import Connections
from qd.errors import ConnectionLost, ServerRefused
from qd.jobs.context import Limit
from qd.jobs.plan import Duration
from qd.locks.lease import LockServer, checked_name, checked_timeout, new_owner
from qd.locks.waiting import COURTESY, RetryPatience, aside
from qd.payload.format import plain_name
from qd.store.locks import Rate, RateReply


class Limiter:
    """At most so many starts in any span of so long, on all hosts together, exact whoever asks at the same time. May be used
    from any thread and task."""

    def __init__(self, connections: Connections, name: str, limit: Limit, *, connection: str | None = None) -> None:
        self.name, self.limit = checked_name("limiter", name), limit
        self._rate = Rate(plain_name(name), limit.most, limit.per)
        self._place = LockServer(connections, connection)

    def acquire(self, timeout: Duration | None = None) -> bool:
        """Wait until one may start, each at a moment of its own and in the order in which they have asked. False, at once:
        that would be later than `timeout` seconds from now (None: never too late).

        Raises ConnectionLost when no server is reached, and when it stays away.
        """
        start = Start(self._place, self._rate, checked_timeout(f"the limiter '{self.name}'", timeout))
        while (pause := start.ask()) is not None:
            if not pause:
                return True
            start.sleep(pause)
        return False

    def try_acquire(self) -> bool:
        """Start now, or not at all. False: the limit is reached."""
        return self.acquire(0)

    def left(self) -> int:
        """How many could start now. Raises ConnectionLost."""
        return self._place.ask(self._rate.left)

    def __enter__(self) -> Limiter:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A start that has been counted stays counted."""

    async def aacquire(self, timeout: Duration | None = None) -> bool:
        """As acquire; the event loop goes on meanwhile."""
        import asyncio  # who awaits has loaded it; who does not need not

        start = Start(self._place, self._rate, checked_timeout(f"the limiter '{self.name}'", timeout))
        try:
            while (pause := await aside(start.ask)) is not None:
                if not pause:
                    return True
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            await aside(start.leave)
            raise
        return False

    async def atry_acquire(self) -> bool:
        """As try_acquire."""
        return await self.aacquire(0)

    async def __aenter__(self) -> Limiter:
        await self.aacquire()
        return self

    async def __aexit__(self, *about: Any) -> None:
        """A start that has been counted stays counted."""

    def __repr__(self) -> str:
        return f"<limiter '{self.name}' {self.limit.most} per {self.limit.per:g} s>"


class Start:
    """One who waits for its start."""

    def __init__(self, place: LockServer, rate: Rate, timeout: float | None) -> None:
        self._place, self._rate, self._owner = place, rate, new_owner()
        self._patience, self._ends = RetryPatience(timeout), timeout is not None

    def ask(self) -> float | None:
        """0: it has started. Else the seconds until it is to ask again; None: it does not wait so long."""
        left = self._patience.left if self._ends else None
        while True:
            try:
                answer = self._asked(left)
            except ConnectionLost as error:
                self._patience.bear(error)
                continue
            self._patience.answered()
            return None if answer.late else answer.wait

    def _asked(self, left: float | None) -> RateReply:
        try:
            return self._place.ask(
                lambda store: self._rate.start(store, self._owner, self._owner, left), self._patience.call
            )
        except (ConnectionLost, ServerRefused):
            raise
        except BaseException:  # an alarm, when the call was over
            self.leave()
            raise

    def sleep(self, seconds: float) -> None:
        """Whatever ends it gives its place away."""
        try:
            time.sleep(seconds)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        with suppress(ConnectionLost, ServerRefused):
            self._place.ask(lambda store: self._rate.leave(store, self._owner), COURTESY)
