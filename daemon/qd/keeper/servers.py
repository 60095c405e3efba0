"""The servers as the keeper finds them.

Permissions      workers take no job until the user of their connection may also make every call that answers for it
ServerHealth     logs an unreachable server, an unreachable node of a cluster or a refused queue once, and once when it is
                 back; the growing delay between two tries
ControlConnection
                 the control connection. If it is not the connection of the jobs and is unreachable, the values read last
                 stay in force. It must not slow the beats on the connection of the jobs: a failed call is followed by a
                 pause TIMES as long
EmbeddedServer   restarts a killed server of `url = "embedded:"`, whose append-only file has kept the jobs. A server that
                 `qd embedded stop` has stopped stays down. A lock in its folder prevents a second server.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Script
from qd.drivers.keyspace.queue import beat
from qd.drivers.types import BeatReply, BeatRequest
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused
from qd.log import Log
from qd.master.children import Backoff
from qd.options.drivers import BORROWERS
from qd.process.scoreboard import H, Scoreboard
from qd.store import audit
from qd.store.base import KeyspaceStore

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.keyspace.base import Keyspace


AGAIN = 1.0  # seconds between two checks while a permission is missing
REFUSALS = ("NOPERM", "can't run this command", "has no permissions")  # of a call; of a script since Redis 7; before
WAY = "no job is taken; `qd doctor` shows how to grant the missing permissions"


class Permissions:
    def __init__(self, queue: KeeperConnector, name: str, board: Scoreboard, log: Log) -> None:
        """name: the queue next to whose keys they are tried."""
        self.queue, self.name, self.board, self.log = queue, name, board, log
        self.missing: set[str] = set()
        self._tried_at = 0.0

    def look(self, fresh: bool) -> None:
        """fresh: this is the first call to the server, or the first since it was unreachable. Raises as the connection."""
        at = time.monotonic()
        if not fresh and not (self.missing and at - self._tried_at >= AGAIN):
            return
        self._tried_at = at
        before = self.missing
        self.missing = self.queue.missing_rights(self.name)
        if self.missing:
            self.board.set_header(H.KEEPER_CONTACT, 0)  # workers check it before they take a job
        if self.missing == before:
            return
        user, driver = self.queue.user(), self.queue.settings.driver
        if self.missing:
            missing = " ".join(sorted(self.missing)).upper()
            self.log.error(f"{driver}.refused", user=user, missing=missing, reason=WAY)
        else:
            self.log.info(f"{driver}.granted", user=user)

    def explain(self, error: Exception) -> bool:
        """Whether the reason for this refusal has been logged already."""
        return bool(self.missing) and any(word in str(error) for word in REFUSALS)


T = TypeVar("T")


def each_of(things: Iterable[T], act: Callable[[T], None]) -> None:
    """Call `act` for each item. If some raise ConnectionLost or ServerRefused, finish the others first, then raise the last
    one."""
    last: ConnectionLost | ServerRefused | None = None
    for thing in things:
        try:
            act(thing)
        except (ConnectionLost, ServerRefused) as error:
            last = error
    if last is not None:
        raise last


DELAYS = (0.1, 1.0)  # seconds between two tries of an unreachable server: at first, and at most


class ServerHealth:
    """The server of the jobs, as a whole (lost, back) and its nodes or queues (update)."""

    def __init__(self, log: Log, server: str, queues: Sequence[str]) -> None:
        """server: its name in the log."""
        self.log, self.server, self.queues = log, server, queues
        self._since: dict[str, float] = {}
        self._away_since: float | None = None
        self._logged = False
        self._delays = Backoff(*DELAYS)

    @property
    def is_away(self) -> bool:
        return self._away_since is not None

    @property
    def partly_away(self) -> bool:
        """Whether nodes or queues were unreachable at the last beat."""
        return bool(self._since)

    def lost(self, error: QdError) -> float:
        """Note a failed beat. Returns the seconds until the next try. An error that names another server, the control
        connection's, is logged by ControlConnection."""
        self._away_since = self._away_since or time.monotonic()
        if error.server is None and not self._logged:
            self._logged = True
            self.log.warning(f"{self.server}.away", error=str(error))
        return self._delays.step() * random.uniform(0.5, 1.0)

    def back(self, place: Callable[[], str | None]) -> None:
        """Note a successful beat. place: the address of the server, which may be another one than before."""
        if self._away_since is not None:
            if self._logged:
                self.log.info(f"{self.server}.back", after=time.monotonic() - self._away_since, at=place())
            self._away_since, self._logged, self._delays.count = None, False, 0

    def update(self, away: Sequence[tuple[str, str]]) -> None:
        """away: the nodes or queues that failed in the last beat, with the error."""
        if not away and not self._since:
            return
        at, wrong = time.monotonic(), dict(away)
        for node in wrong.keys() - self._since.keys():
            self._since[node] = at
            if self._is_queue(node):
                self.log.warning("queue.unusable", queue=node, error=wrong[node])
            else:
                self.log.warning(f"{self.server}.away", node=node, error=wrong[node])
        for node in self._since.keys() - wrong.keys():
            after = at - self._since.pop(node)
            if self._is_queue(node):
                self.log.info("queue.usable", queue=node, after=after)
            else:
                self.log.info(f"{self.server}.back", node=node, after=after)

    def _is_queue(self, name: str) -> bool:
        return name in self.queues or self.server != "redis"


RESTS = (1.0, 30.0)  # seconds between two starts: at first, and at most


class EmbeddedServer:
    """The server of the connection of the jobs or of the control connection, if one of them is embedded."""

    def __init__(self, settings: Settings, log: Log) -> None:
        names = (settings.work.connection, settings.control)
        urls = [settings.connections[name].url or "" for name in names]
        self.root = settings.root if any(url.startswith("embedded:") for url in urls) else None
        self.log = log
        self._rest = Backoff(*RESTS)

    def look(self, away: bool) -> None:
        """away: the last call of the server failed."""
        if self.root is None:
            return
        if not away:
            self._rest.clear()
        if not away or self._rest.waits:
            return
        from qd.drivers import embedded  # only a project that has one

        try:
            pid = embedded.revive(self.root)
        except (ConfigError, OSError, subprocess.SubprocessError) as error:
            self.log.error("embedded.not_started", error=str(error), retry_in=self._rest.step())
            return
        if pid is not None:
            self._rest.step()
            self.log.warning("embedded.started", pid=pid, reason="it was killed")


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
                with self.space.within(min(LOOK, longest_call(self.jobs))) if self.is_away else nullcontext():
                    self._reply, self._read_at = beat(self.space, self.prefix, (), request), at
                self._back()
                return self._reply, True
            except (ConnectionLost, ServerRefused) as error:
                self._not_before = time.monotonic() + max(REST, TIMES * (time.monotonic() - at))
                self.lost(error)
        if self._reply is None:
            return None, False
        return self._reply._replace(now=self._reply.now + at - self._read_at), False

    def hash(self, name: str) -> Sequence[Any]:
        """A hash, as a flat list. Raises ControlAway."""
        found: Sequence[Any] = self._call("HGETALL", self.prefix + name)
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
        self._tried(lambda: audit.record(KeyspaceStore(self.space, self.prefix), *events), ConnectionLost)

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
