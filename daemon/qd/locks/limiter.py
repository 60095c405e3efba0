"""A named rate limit: app.limiter(...). It shares its window with RateLimited of the same name."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from qd.drivers.connections import Connections
from qd.drivers.pausing import Pausing, block_on, settled, wait_for
from qd.errors import ConnectionLost, ServerRefused
from qd.jobs.context import Limit
from qd.jobs.plan import Duration
from qd.locks.lease import LockServer, checked_name, checked_timeout, new_owner
from qd.locks.waiting import COURTESY, RetryPatience
from qd.payload.format import plain_name
from qd.store.locks import Rate


class Limiter:
    """At most `limit.most` starts in any `limit.per` seconds, exact across all hosts. For any thread or task."""

    def __init__(self, connections: Connections, name: str, limit: Limit, *, connection: str | None = None) -> None:
        self.name, self.limit = checked_name("limiter", name), limit
        self._rate = Rate(plain_name(name), limit.most, limit.per)
        self._server = LockServer(connections, connection)

    def acquire(self, timeout: Duration | None = None) -> bool:
        """Wait for a start; waiters are served in order. False, immediately: the wait would exceed `timeout` seconds (None:
        no limit). Raises ConnectionLost if the server is unreachable for too long."""
        start = Start(self._server, self._rate, checked_timeout(f"the limiter '{self.name}'", timeout))
        while (pause := block_on(start.ask())) is not None:
            if not pause:
                return True
            start.sleep(pause)
        return False

    def try_acquire(self) -> bool:
        """Start now if the limit allows it. False: the limit is reached."""
        return self.acquire(0)

    def left(self) -> int:
        """How many could start now. Raises ConnectionLost."""
        return self._server.call(self._rate.left)

    def __enter__(self) -> Limiter:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A start that has been counted stays counted."""

    async def aacquire(self, timeout: Duration | None = None) -> bool:
        """As acquire."""
        import asyncio  # loaded only by apps that use it

        start = Start(self._server, self._rate, checked_timeout(f"the limiter '{self.name}'", timeout))
        try:
            while pause := await wait_for(start.ask()):
                await asyncio.sleep(pause)
            return pause is not None
        except asyncio.CancelledError:
            await settled(asyncio.get_running_loop().create_task(wait_for(start.leave())))
            raise

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
    """One wait for a start."""

    def __init__(self, server: LockServer, rate: Rate, timeout: float | None) -> None:
        self._server, self._rate, self._owner = server, rate, new_owner()
        self._patience, self._ends = RetryPatience(timeout), timeout is not None

    def ask(self) -> Pausing[float | None]:
        """0: it may start. Else the seconds until the next call; None: that exceeds the timeout."""
        left = self._patience.left if self._ends else None
        while True:
            try:
                answer = yield self._server.ask(
                    lambda store: self._rate.start(store, self._owner, self._owner, left), self._patience.call_timeout
                )
            except ConnectionLost as error:
                yield from self._patience.bear(error)
            except ServerRefused:
                raise
            except BaseException:  # an alarm, after the call
                yield from self.leave()
                raise
            else:
                self._patience.answered()
                return None if answer.late else answer.wait

    def sleep(self, seconds: float) -> None:
        """Sleep; an exception that interrupts it gives up the turn."""
        try:
            time.sleep(seconds)
        except BaseException:
            block_on(self.leave())
            raise

    def leave(self) -> Pausing[None]:
        with suppress(ConnectionLost, ServerRefused):
            yield self._server.ask(lambda store: self._rate.leave(store, self._owner), COURTESY)
