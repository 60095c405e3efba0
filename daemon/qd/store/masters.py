"""Reports of running masters and their workers: the hash qd:masters, one report per master.

A keeper writes its master's report about once a second, stamped with the store's time; `qd status` and `qd restart --wait`
read them. A report may be outdated: the last one of a killed host stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from qd.drivers.keyspace import keys
from qd.options.kinds import QUEUE_SUFFIXES
from qd.store.base import Store, decoded

SILENT = 10.0  # seconds without a report: the master has ended, or its keeper cannot reach the server
FORGOTTEN = 3600.0  # seconds after which keepers delete a report
KEPT = tuple(ending.removeprefix(":") for ending in QUEUE_SUFFIXES)
LOOK = 100_000  # names to scan for queues; on a server with more, some queues may not be found


class WorkerReport(msgspec.Struct):
    """One child of a master. since: unix seconds by the store's clock, when its job began."""

    slot: int
    pid: int = 0
    state: str = ""
    job: str | None = None
    since: float | None = None
    timeout: float | None = None  # seconds that its job may take; None: no limit, or unknown
    done: int = 0
    grown: int | None = None  # bytes since it was ready; None: unknown
    held: int = 0  # fetched and not started
    running: int = 0  # jobs; `job` is the one that has been running longest
    longest: list[dict[str, Any]] = []  # of several jobs: job, queue and since of those that have been running longest
    queue: str | None = None
    start: int | None = None  # clock ticks after boot at which the process started
    job_id: str | None = None  # of `job`; not reported: `qd status` finds it in the payload


class SchedulerReport(msgspec.Struct):
    """A master's child that runs the schedule. run: the entry that is running, one of `runs`; since: unix seconds."""

    slot: int
    pid: int = 0
    state: str = ""
    entries: int = 0
    runs: int = 0
    run: str | None = None
    since: float | None = None
    start: int | None = None  # clock ticks after boot at which the process started


class MasterReport(msgspec.Struct):
    """One master. Times are unix seconds by the store's clock; state: running, paused, stopping, down."""

    token: str
    host: str
    pid: int
    booted_at: float
    seen_at: float
    pool: str = ""
    connection: str = ""
    queues: list[str] = []
    version: str = ""
    state: str = "running"
    laravel_down: str = ""  # the key or file of Laravel that puts it in maintenance mode
    workers: list[WorkerReport] = []
    schedulers: list[SchedulerReport] = []
    unscheduled: float | None = None  # since when it should have a scheduler and has none
    boot: str = ""  # boot id of its host; with pid namespace and start of the process it identifies a dead master
    ns: str = ""
    start: int | None = None
    crashes: list[float] = []  # times of the last crashes of its workers, at most 8, of the last 60 s
    keeper_restarts: int = 0
    wanted: int = 0  # workers; 0: not reported yet
    configured: int = 0
    silent_workers: list[int] = msgspec.field(default_factory=list, name="silent")  # slots of unresponsive workers
    stuck: dict[str, float] = {}  # queue -> since when it has ready jobs that no worker takes
    took_at: float | None = None  # the last reservation by any of its workers
    root: bool = False
    master_silent: float = 0.0  # seconds since the master last showed activity to its keeper
    refused: str = ""  # why it refused new code and runs the old; what to do. "" after the next reload that succeeds
    refused_at: float | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Host and pool: the same for a master and its successor."""
        return self.host, self.pool

    @property
    def pool_title(self) -> str:
        """The pool as logs and commands show it: "default" for the one without a name."""
        return self.pool or "default"

    @property
    def title(self) -> str:
        """`mail@app-1`."""
        return f"{self.pool_title}@{self.host}"

    def silent(self, now: float) -> bool:
        """Whether it has not reported for so long that it has probably ended."""
        return now - self.seen_at > SILENT

    @property
    def hangs(self) -> bool:
        """Whether the master does not respond although its keeper reports."""
        return self.master_silent > SILENT


_decoder = msgspec.json.Decoder(MasterReport, strict=False)


def masters(store: Store) -> list[MasterReport]:
    """Every readable report, also of silent masters, by host, pool and pid."""
    return read_masters(store.fields(keys.MASTERS))


def read_masters(fields: Mapping[str, bytes]) -> list[MasterReport]:
    found = [master for raw in fields.values() if (master := decoded(_decoder, raw)) is not None]
    return sorted(found, key=attrgetter("host", "pool", "pid"))


def forgotten(fields: Mapping[str, bytes], now: float) -> list[str]:
    """The tokens of reports to delete: too old, or unreadable."""
    found = {token: decoded(_decoder, raw) for token, raw in fields.items()}
    return [token for token, master in found.items() if master is None or now - master.seen_at > FORGOTTEN]


def queues_of(found: Iterable[MasterReport]) -> dict[str, list[str]]:
    """Connection -> the queues its masters work on, each once, in their order."""
    queues: dict[str, dict[str, None]] = {}
    for master in found:
        queues.setdefault(master.connection, {}).update(dict.fromkeys(master.queues))
    return {connection: list(names) for connection, names in queues.items()}


def queues_found(store: Store) -> list[str]:
    """The queues that have keys on this server, whether or not a worker takes from them."""
    bodies = [name.removeprefix("queues:").rpartition(":") for name in store.names("queues:", LOOK)]
    return sorted({head if end in KEPT else f"{head}{colon}{end}" for head, colon, end in bodies} - {""})


def queues_held(store: Store) -> list[str]:
    """The paused queues on this server."""
    return [name[len("queues:") : -len(":paused")] for name in store.names("queues:", LOOK) if name.endswith(":paused")]
