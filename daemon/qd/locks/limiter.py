"""A named rate limit: app.limiter(...). It shares its window with RateLimited of the same name."""

from __future__ import annotations

from contextlib import suppress

from qd.drivers.connections import Connections
from qd.drivers.pausing import Pausing, block_on, sleep, wait_for
from qd.errors import ConnectionLost, ServerRefused
from qd.jobs.context import Limit
from qd.jobs.plan import Duration
from qd.locks.lease import COURTESY, LockServer, RetryPatience, checked_name, checked_timeout, new_owner
from qd.payload.format import plain_name
from qd.store.locks import Rate


class Limiter:
    """At most `limit.most` starts in any `limit.per` seconds, exact across all hosts. For any thread or task."""

    def __init__(self, connections: Connections, name: str, limit: Limit, *, connection: str | None = None) -> None:
        self.name, self.limit = checked_name("limiter", name), limit
        self._rate = Rate(plain_name(name), limit.most, limit.per)
        self._server = LockServer(connections, connection)

    def acquire(self, timeout: Duration | None = None) -> bool:
        """Wait until the limit allows a start. Waiters are served in order.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Returns:
            False, immediately, if the wait would take longer.

        Raises:
            ConnectionLost: The server was unreachable for too long.
        """
        return block_on(self._acquire(timeout))

    def _acquire(self, timeout: Duration | None) -> Pausing[bool]:
        seconds = checked_timeout(f"the limiter '{self.name}'", timeout)
        owner, patience = new_owner(), RetryPatience(seconds)
        start = lambda store: self._rate.start(store, owner, owner, None if seconds is None else patience.left)  # noqa: E731
        try:
            while True:
                try:
                    answer = yield from self._server.ask(start, patience.call_timeout)
                except ConnectionLost as error:
                    yield from patience.bear(error)
                    continue
                patience.answered()
                if answer.late or not answer.wait:
                    return not answer.late
                yield sleep(answer.wait)
        except (ConnectionLost, ServerRefused):
            raise
        except BaseException:  # an alarm, or the task was cancelled: give up the turn
            with suppress(ConnectionLost, ServerRefused):
                yield from self._server.ask(lambda store: self._rate.leave(store, owner), COURTESY)
            raise

    def try_acquire(self) -> bool:
        """Start now. Returns False if the limit is reached."""
        return self.acquire(0)

    def left(self) -> int:
        """How many could start now. Raises ConnectionLost."""
        return block_on(self._server.ask(self._rate.left))

    def __enter__(self) -> Limiter:
        self.acquire()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """A start that has been counted stays counted."""

    async def aacquire(self, timeout: Duration | None = None) -> bool:
        """As acquire."""
        return await wait_for(self._acquire(timeout))

    async def atry_acquire(self) -> bool:
        """As try_acquire."""
        return await self.aacquire(0)

    async def __aenter__(self) -> Limiter:
        await self.aacquire()
        return self

    async def __aexit__(self, *about: object) -> None:
        """A start that has been counted stays counted."""

    def __repr__(self) -> str:
        return f"<limiter '{self.name}' {self.limit.most} per {self.limit.per:g} s>"
