"""Which masters are there, and what each of their workers does: the hash qd:masters, one report a master.

A keeper writes its master's report about once a second, with the store's time in it; `qd status` and
`qd restart --wait` read. A report is a fact with an age, never a promise: a killed host leaves its last one behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from qd.drivers.keyspace import keys
from qd.options.kinds import BESIDE
from qd.store.base import Store

SILENT = 10.0  # seconds without a report: the master is gone, or its keeper does not reach the server
FORGOTTEN = 3600.0  # keepers take reports away that are older


class WorkerReport(msgspec.Struct):
    """One child of a master. since: unix seconds by the store's clock, when its job began."""

    slot: int
    pid: int = 0
    state: str = ""
    job: str | None = None
    since: float | None = None
    done: int = 0
    queue: str | None = None
    start: int | None = None  # clock ticks after boot at which the process started


class SchedulerReport(msgspec.Struct):
    """A master's child that runs the schedule. run: the entry that runs now, of `runs` at once; since: unix seconds."""

    slot: int
    pid: int = 0
    state: str = ""
    entries: int = 0
    runs: int = 0
    run: str | None = None
    since: float | None = None
    start: int | None = None  # clock ticks after boot at which the process started


class MasterReport(msgspec.Struct):
    """What others need of a report. Moments: unix seconds, the store's clock; state: running, paused, stopping, down."""

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
    laravel_down: str = ""  # the key or file of Laravel that holds it in maintenance mode
    workers: list[WorkerReport] = []
    schedulers: list[SchedulerReport] = []
    unscheduled: float | None = None  # since when it wants a scheduler and has none
    boot: str = ""  # boot id of its host, pid namespace, start of the process: who compares them knows a dead one
    ns: str = ""
    start: int | None = None
    crashes: list[float] = []  # moments of the last crashes of its workers, at most 8, of the last 60 s
    keeper_restarts: int = 0
    silent_workers: list[int] = msgspec.field(default_factory=list, name="silent")  # slots of those that do not answer
    stuck: dict[str, float] = {}  # queue -> since when it has work that nobody holds back and nobody takes
    took_at: float | None = None  # the last reservation by any of its workers
    root: bool = False
    master_silent: float = 0.0  # seconds since the master itself was last about, as its keeper sees it

    @property
    def place(self) -> tuple[str, str]:
        """Host and pool: who takes a master's place is known by it."""
        return self.host, self.pool

    def silent(self, now: float) -> bool:
        """Whether it has not reported for so long that it is most likely gone."""
        return now - self.seen_at > SILENT

    @property
    def hangs(self) -> bool:
        """Whether the master does nothing any more, though its keeper reports."""
        return self.master_silent > SILENT


_decoder = msgspec.json.Decoder(MasterReport, strict=False)


def masters(store: Store) -> list[MasterReport]:
    """Every report, by host, pool and pid; those of silent masters too. What is no report is left out."""
    return read_masters(store.fields(keys.MASTERS))


def read_masters(fields: Mapping[str, bytes]) -> list[MasterReport]:
    found = [master for raw in fields.values() if (master := read_master(raw)) is not None]
    return sorted(found, key=lambda master: (master.host, master.pool, master.pid))


def read_master(raw: bytes) -> MasterReport | None:
    """None: not a report of any version of qd that this one can read."""
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def forgotten(fields: Mapping[str, bytes], now: float) -> list[str]:
    """The tokens whose reports are to be taken away: too old, or not readable by anybody."""
    found = [(token, read_master(raw)) for token, raw in fields.items()]
    return [token for token, master in found if master is None or now - master.seen_at > FORGOTTEN]


def queues_of(found: Iterable[MasterReport]) -> dict[str, list[str]]:
    """Connection -> the queues its masters work on, each once, in their order."""
    queues: dict[str, dict[str, None]] = {}
    for master in found:
        queues.setdefault(master.connection, {}).update(dict.fromkeys(master.queues))
    return {connection: list(names) for connection, names in queues.items()}


KEPT = tuple(ending.removeprefix(":") for ending in BESIDE)
LOOK = 100_000  # names; a server that holds more may hold queues that are not found so


def queues_found(store: Store) -> list[str]:
    """The queues that have keys on this server, whether anybody works on them or not."""
    bodies = [name.removeprefix("queues:") for name in store.names("queues:", LOOK)]
    heads = [body.rpartition(":")[0] if body.rpartition(":")[2] in KEPT else body for body in bodies]
    return sorted({head for head in heads if head})


def queues_held(store: Store) -> list[str]:
    """The queues found so that are paused."""
    return [name[len("queues:") : -len(":paused")] for name in store.names("queues:", LOOK) if name.endswith(":paused")]
