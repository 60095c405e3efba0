"""The control connection. If it is not the connection of the jobs and is unreachable, the values read last stay in force.

It must not slow the beats on the connection of the jobs: a failed call is followed by a pause TIMES as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Script
from qd.drivers.keyspace.queue import beat
from qd.drivers.types import BeatReply, BeatRequest
from qd.errors import ConnectionLost, QdError, ServerRefused
from qd.log import Log
from qd.options.drivers import BORROWERS
from qd.store import audit
from qd.store.base import KeyspaceStore

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings
    from qd.drivers.keyspace.base import Keyspace


REST = 0.5  # seconds between two tries while it is unreachable, at least
TIMES = 10.0  # length of the pause, in durations of the failed try
LOOK = 0.5  # seconds that a try may take while it is unreachable


def longest_call(jobs: ConnectionSettings) -> float:
    """Seconds that a call to the control connection may take: renewals on the connection of the jobs wait for it."""
    return max(0.2, jobs.retry_after / 6)


class ControlAway(ConnectionLost):
    """A call to the control connection failed. Its log line is written."""


class ControlConnection:
    def __init__(
        self, space: Keyspace, prefix: str, settings: ConnectionSettings, jobs: ConnectionSettings, log: Log
    ) -> None:
        """settings: of the control connection. jobs: of the connection of the jobs."""
        self.space, self.prefix, self.log = space, prefix, log
        self.driver, self.name, self.jobs = settings.driver, settings.name, jobs
        self._reply: BeatReply | None = None
        self._read_at = 0.0
        self._away_since: float | None = None
        self._not_before = 0.0

    @property
    def is_away(self) -> bool:
        return self._away_since is not None

    def beat(self, request: BeatRequest) -> tuple[BeatReply | None, bool]:
        """Its stamps, and whether they were read now. While it is unreachable: those read last, with the estimated time.
        None: they were never read."""
        at = time.monotonic()
        if at >= self._not_before:
            try:
                self._reply, self._read_at = self._try(request), at
                self._back()
                return self._reply, True
            except (ConnectionLost, ServerRefused) as error:
                self._not_before = time.monotonic() + max(REST, TIMES * (time.monotonic() - at))
                self.lost(error)
        if self._reply is None:
            return None, False
        return self._reply._replace(now=self._reply.now + at - self._read_at), False

    def _try(self, request: BeatRequest) -> BeatReply:
        if not self.is_away:
            return beat(self.space, self.prefix, (), request)
        with self.space.within(min(LOOK, longest_call(self.jobs))):
            return beat(self.space, self.prefix, (), request)

    def reports(self) -> Sequence[Any]:
        """The hash of all masters, as a flat list. Raises ControlAway."""
        found: Sequence[Any] = self._call("HGETALL", self.prefix + keys.MASTERS)
        return found

    def fleet(self) -> Sequence[Any]:
        """The hash of orders for a part of the fleet, as a flat list. Raises ControlAway."""
        found: Sequence[Any] = self._call("HGETALL", self.prefix + keys.FLEET)
        return found

    def forget(self, *tokens: str) -> None:
        """Raises ControlAway."""
        for at in range(0, len(tokens), 1000):
            for name in (keys.MASTERS, keys.STATS_NUMBERS):
                self._call("HDEL", self.prefix + name, *tokens[at : at + 1000])

    def step(self, script: Script, names: Sequence[str], *args: Arg) -> Any:
        """Run a script. Raises ControlAway, and ServerRefused."""
        placed = [self.prefix + name for name in names]
        return self._tried(lambda: self.space.run(script, placed, args), ConnectionLost)

    def record(self, *events: audit.Event) -> None:
        """Raises ControlAway, ServerRefused."""
        try:
            audit.record(KeyspaceStore(self.space, self.prefix), *events)
        except ConnectionLost as error:
            if self.name == self.jobs.name:
                raise
            self.lost(error)
            raise ControlAway(str(error)) from None

    def _call(self, *words: str) -> Any:
        return self._tried(lambda: self.space.call(*words), ConnectionLost, ServerRefused)

    def _tried(self, act: Callable[[], Any], *errors: type[ConnectionLost | ServerRefused]) -> Any:
        try:
            return act()
        except errors as error:
            if self.name == self.jobs.name:
                raise
            self.lost(error)
            raise ControlAway(str(error)) from None

    def lost(self, error: QdError) -> None:
        """Log the error, once until the connection is back."""
        if self._away_since is not None:
            return
        self._away_since = time.monotonic()
        effect = "restart and maintenance stay as they were last read; jobs continue"
        if self.jobs.driver in BORROWERS:
            jobs = f"connection '{self.jobs.name}' ({self.jobs.driver})"
            effect = f"no job of {jobs} is taken: its leases are stored here"
        self.log.warning(f"{self.driver}.away", connection=self.name, error=str(error), effect=effect)

    def _back(self) -> None:
        if self._away_since is not None:
            after, self._away_since = time.monotonic() - self._away_since, None
            self.log.info(f"{self.driver}.back", connection=self.name, after=after)
