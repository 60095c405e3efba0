"""The state of masters, workers, queues and notes, as the servers have it: for `qd status`, `qd health` and `qd doctor`.

If a node of a cluster is unreachable, State has what the other nodes know.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from qd.cli import context, output
from qd.config.settings import FailedSettings, Settings
from qd.drivers.connections import gaps_of
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Mistyped
from qd.drivers.types import Sizes
from qd.errors import ConnectionLost, Malformed, NeedsMending, ServerBusy, ServerRefused
from qd.options.drivers import WITH_KEYSPACE
from qd.options.kinds import did_you_mean
from qd.payload.format import Payload, read, readable
from qd.payload.reservation import split_mark
from qd.store import controls, fleet, masters, schedule
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore, Fill
from qd.store.fleet import Fleet
from qd.store.masters import MasterReport, WorkerReport
from qd.store.waiting import waiting

T = TypeVar("T")
U = TypeVar("U")
MASTERS = "masters and their workers"
OBJECT_JOB = rb'"job":"Illuminate\\Queue\\CallQueuedHandler@call"'  # as JSON writes the two backslashes
OF_CLASS = re.compile(rb'"job":"[^"\\]*\\\\')  # the name of a PHP class with its namespace
NOTHING_KEPT, UNREAD = Fill(), Sizes(0, 0, 0, 0, None)
NO_JOBS = ("", False, ())
FIRST, RESERVED = 10, 100  # delayed jobs, and reservations, of a queue that are read
FRESH = 3.0  # seconds: a master that reported since then proves that its server takes writes
OLD = 10.0  # seconds a job has waited when its server may be the reason
PROBE = "qd:probe"  # a key that never exists, to try a write
STALE = 5.0  # seconds without a report; one comes each second
LONG = 3600.0  # seconds after which a running job without a timeout is reported


class Partly:
    """away: nodes that do not answer -> why. unknown: what they have, in words. reports: of masters; now: the server's."""

    def __init__(self) -> None:
        self.reports, self.now = list[MasterReport](), 0.0
        self.away = dict[str, str]()
        self.unknown = list[str]()

    def read(self, space: Any, what: str, otherwise: U, read: Callable[..., T], *args: Any) -> T | U:
        """Returns `otherwise` if the node is unreachable, and adds `what` to `unknown`, unless it is "". Raises
        ConnectionLost for a server that is not a cluster, and if no node answers."""
        try:
            return read(*args)
        except ConnectionLost:
            if not self._away(space):
                raise
            if what:
                self.unknown.append(what)
            return otherwise

    def found(self, space: Any, find: Callable[[], list[str]]) -> list[str]:
        """Search names on all nodes. Returns the names of the nodes that answer."""
        if hasattr(space, "skips"):
            space.skips = True
        names = find()
        if self._away(space):
            self.unknown.append("other queues there")
        return names

    def _away(self, space: Any) -> dict[str, str]:
        nodes: dict[str, str] = space.away() if hasattr(space, "skips") else {}
        self.away.update(nodes)
        return nodes


class Held(NamedTuple):
    """A job that a worker put back, because no worker can run it or it is paused. since: the first time (unix seconds).
    display: its name for people."""

    id: str
    job: str
    since: float
    display: str


@dataclass(frozen=True)
class QueueLine:
    """A queue and its contents.

    workers: those that serve it, idle or not. php: the name of the next job if it is PHP's and no PHP worker has
    reserved one, else "". theirs: a PHP worker has reserved a job. held: those of the first delayed jobs, and of both
    ends of the ready ones. failed: see store.failed.Fill. full: the used part of the failed store's limits; at 1.0 the
    next failed job drops the oldest. overdue: seconds since the first delayed job was due or the first lease ended; 0.0
    if neither, or a worker serves the queue. ours: a master serves it, or the configuration names it. error: why it
    cannot be read; "" if it can.
    """

    connection: str
    name: str
    sizes: Sizes
    paused: controls.Pause | None
    workers: int
    php: str = ""
    theirs: bool = False
    held: tuple[Held, ...] = ()
    failed: Fill = NOTHING_KEPT
    full: float = 0.0
    overdue: float = 0.0
    ours: bool = True
    error: str = ""


@dataclass(frozen=True)
class State:
    """What `qd status` shows, read at `now` (unix seconds, the server's clock).

    paused_entries: entries of the schedule, "*" for all. away: unreachable connections -> why; their queues are
    missing. refused: connections whose server refuses writes -> its reply. control: the control connection, which has
    the reports of masters under `prefix`, or in a database. nodes: unreachable nodes of a cluster -> why. unknown:
    what is missing because of them, in words.
    """

    now: float
    down: controls.Down | None
    restart: controls.Restart | None
    masters: list[MasterReport]
    queues: list[QueueLine]
    paused_entries: dict[str, controls.Pause] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    control: str = ""
    nodes: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    fleet: Fleet = field(default_factory=Fleet)
    prefix: str = ""
    in_database: bool = False

    @property
    def knows_masters(self) -> bool:
        return MASTERS not in self.unknown

    @cached_property
    def living(self) -> list[MasterReport]:
        return [master for master in self.masters if not stale(master, self.now)]

    @cached_property
    def serving(self) -> Mapping[tuple[str, str], list[MasterReport]]:
        """Connection and queue -> the masters that serve it, silent ones too."""
        found: dict[tuple[str, str], list[MasterReport]] = {}
        for master in self.masters:
            for queue in dict.fromkeys(master.queues):
                found.setdefault((master.connection, queue), []).append(master)
        return found


def read_state(found: Settings, *, only: Sequence[str] = (), also: Sequence[str] = ()) -> State:
    """only: these queues; () for all, with those that are only found on the server. also: queues of the first connection.
    Raises ConnectionLost if the control connection is unreachable."""
    store, partly = context.store(found, found.control), Partly()
    reports = partly.read(store.space, MASTERS, list[MasterReport](), masters.masters, store)
    now = partly.now = partly.read(store.space, "", time.time(), store.now)
    if context.given().connection:
        chosen = context.places(found)
        reports = [master for master in reports if master.connection in chosen]
    partly.reports, also = reports, only or also
    queues, away, refused = list[QueueLine](), dict[str, str](), dict[str, str]()
    for place in places(found, reports):
        try:
            of_place = store if place == found.control else context.store(found, place)
            own = lines(found, place, of_place, partly, only=only, also=also)
            if place != found.control:
                waits = any(line.sizes.ready and (line.sizes.oldest_age or OLD) >= OLD for line in own)
                own_server = found.connection(place).driver in WITH_KEYSPACE
                refused[place] = fullness(of_place.space) if own_server else ""
                if waits and not refused[place]:
                    names = [line.name for line in own]
                    refused[place] = partly.read(of_place.space, "", "", refusal, of_place, names)
            queues += own
        except ConnectionLost as error:
            away[place] = str(error)
        also = ()
    none_paused = dict[str, controls.Pause]()
    paused_entries = partly.read(store.space, "paused entries", none_paused, schedule.paused, store, now)
    down = partly.read(store.space, "maintenance mode", None, controls.is_down, store)
    of_fleet = partly.read(store.space, "pauses of jobs, hosts and pools", Fleet(), fleet.read, store, now)
    restart = partly.read(store.space, "the last restart", None, controls.last_restart, store)
    refused[found.control] = fullness(store.space)
    if not refused[found.control] and not any(now - master.seen_at <= FRESH for master in reports):
        # The last call: a server that refuses may close the connection.
        refused[found.control] = partly.read(store.space, "", "", refusal, store)
    refused = {place: why for place, why in refused.items() if why}
    if long := [master for master in reports if any(runs_long(worker, now) for worker in master.workers)]:
        with suppress(ConnectionLost, ServerRefused):
            name_jobs(found, long)
    known = (now, down, restart, reports, queues, paused_entries, away, refused, found.control)
    in_database = hasattr(store.space, "connection")
    return State(*known, partly.away, tuple(partly.unknown), of_fleet, store.prefix, in_database)


def places(found: Settings, reports: list[MasterReport]) -> list[str]:
    """The connection of -c, else the default one, those of [worker] and the pools, and those that masters work on. For
    a failover connection those that it sends to."""
    if context.given().connection:
        return context.places(found)
    worked = [one.work.connection for one in context.pools(found)] + [master.connection for master in reports]
    parts = [part for name in worked if name in found.connections for part in found.parts(name)]
    return list(dict.fromkeys([*context.places(found), *parts]))


def lines(
    found: Settings, place: str, store: KeyspaceStore, partly: Partly, *, only: Sequence[str], also: Sequence[str]
) -> list[QueueLine]:
    """One per queue that is worked on, configured, or has jobs, and one for the connection's own."""
    queue, reports, now = context.queue(found, place), partly.reports, partly.now
    mine, own = our_queues(found, place, reports), found.connection(place).queue
    there = [] if only else [*partly.found(store.space, lambda: masters.queues_found(store)), *queue.queues()]
    named = dict.fromkeys(name for name in (*mine, own, *there, *also) if not only or name in only)
    space = getattr(queue, "space", None)
    alive = [master for master in reports if master.connection == place and not master.silent(now)]
    serve = Counter[str]()
    for master in alive:
        serve.update(dict.fromkeys(master.queues, len(master.workers)))
    sizes, queues = dict[str, Sizes](), list[QueueLine]()
    for name in named:
        try:
            each = partly.read(space, f"queue {name}", None, queue.sizes, name)
        except Mistyped as error:
            queues.append(QueueLine(place, name, UNREAD, None, serve[name], error=str(error)))
        else:
            sizes |= {} if each is None else {name: each}
    names = [*sizes]
    paused = controls.paused(store, names)
    for (name, each), fill in zip(sizes.items(), FailedStore(store).fills(names), strict=True):
        overdue = overdue_of(store, name, now) if (each.delayed or each.reserved) and not serve[name] else 0.0
        ours = name in mine
        waits = bool(each.ready or overdue)
        jobs = jobs_of(store, name, now, ours=ours, waits=waits) if waits or each.delayed else NO_JOBS
        used = full(found.failed, each.failed, fill)
        queues.append(QueueLine(place, name, each, paused.get(name), serve[name], *jobs, fill, used, overdue, ours))
    order = {name: at for at, name in enumerate(named)}
    return sorted(queues, key=lambda line: order[line.name])


def our_queues(found: Settings, place: str, reports: Sequence[MasterReport]) -> list[str]:
    """The queues of the connection that a master serves or the configuration names. Others may belong to PHP workers."""
    return [*masters.queues_of(reports).get(place, []), *context.queues_named(found, place)]


def known_queues(found: Settings, place: str, reports: Sequence[MasterReport]) -> list[str]:
    """Every queue of the connection that is configured, worked on, or has keys."""
    there = masters.queues_found(context.store(found, place))
    return list(dict.fromkeys([found.connection(place).queue, *our_queues(found, place, reports), *there]))


def running(found: Settings, reports: Iterable[MasterReport]) -> dict[tuple[str, int], list[Payload]]:
    """(token, slot) of the workers in `reports` -> the jobs that they have reserved, the one that began first at the top.
    Not on a connection that cannot list its jobs. Raises ConnectionLost, ServerRefused."""
    known = [master for master in reports if master.connection in found.connections]
    busy = [(master.connection, worker) for master in known for worker in master.workers if worker.job]
    queues = {(at, queue) for at, worker in busy for queue in (worker.queue, *(o.get("queue") for o in worker.longest))}
    turns = dict[tuple[str, int], list[tuple[int, Payload]]]()
    for at, queue in queues:
        if queue and not gaps_of(found, at, context.own_drivers(found, at)).get("find"):
            for job in waiting(context.store(found, at), queue, "reserved"):
                with suppress(Malformed, ValueError):  # of another program
                    payload = read(job.text)
                    mark = split_mark(payload.rsv or "")
                    turns.setdefault((mark.token, mark.slot), []).append((mark.turn, payload))
    return {worker: [job for _, job in sorted(jobs, key=itemgetter(0))] for worker, jobs in turns.items()}


def name_jobs(found: Settings, reports: Iterable[MasterReport]) -> None:
    """Write the ids of running jobs into the reports of their workers."""
    jobs = running(found, reports)
    for master in reports:
        for worker in master.workers:
            own = (job for job in jobs.get((master.token, worker.slot), ()) if job.display == worker.job)
            worker.job_id = next((job.id or job.uuid for job in own), None)


def note_unknown(found: Settings, places: Sequence[str], queue: str) -> None:
    """For a queue without jobs: its name may be misspelled. Prints nothing if a server does not list its queues."""
    try:
        reports = masters.masters(context.store(found, found.control))
        known = [name for place in places for name in known_queues(found, place, reports)]
        known += [name for place in places for name in context.queue(found, place).queues()]
    except (ConnectionLost, ServerRefused):
        return
    if queue not in known:
        output.note(unknown_queue(queue, known))


APP = "the app was not asked: a queue that only its jobs name is not known here"


def unknown_queue(name: str, known: Sequence[str]) -> str:
    what = "no job is in it, no master works on it, qd.toml does not name it"
    return f"qd: unknown queue '{name}'{did_you_mean(name, known)}: {what}; {APP}"


def full(bounds: FailedSettings, count: int, fill: Fill) -> float:
    """The used part of the limit that is closer."""
    if not bounds.enabled:
        return 0.0
    return max(fill.bytes / bounds.max_bytes, count / bounds.max_count if bounds.max_count else 0.0)


def overdue_of(store: KeyspaceStore, queue: str, now: float) -> float:
    """Seconds since the first delayed job was due, or the first lease ended; a keeper of the queue makes them ready."""
    names = [store.prefix + key(queue) for key in (keys.delayed, keys.reserved)]
    firsts = store.space.call_many([("ZRANGE", name, 0, 0, "WITHSCORES") for name in names])
    ended = [now - float(first[1]) for first in firsts if isinstance(first, list) and first]
    return max([0.0, *ended])


def jobs_of(
    store: KeyspaceStore, queue: str, now: float, *, ours: bool, waits: bool
) -> tuple[str, bool, tuple[Held, ...]]:
    """(php, theirs, held) of a QueueLine. waits: a job is ready or overdue. A PHP worker between two jobs is recognized by
    its previous reservation; a dead one until its reservation ends. In a queue that is not `ours`, the job of a PHP class
    is PHP's, too."""
    ready, delayed, reserved = (store.prefix + key(queue) for key in (keys.ready, keys.delayed, keys.reserved))
    ends = ("LINDEX", ready, 0), ("LINDEX", ready, -1)
    ranges = ("ZRANGE", delayed, 0, FIRST - 1), ("ZRANGE", reserved, 0, RESERVED - 1, "WITHSCORES")
    head, last, later, running = store.space.call_many([*ends, *ranges])
    if isinstance(head, Exception) or not isinstance(later, list) or not isinstance(running, list):
        return NO_JOBS
    pairs = zip(running[::2], running[1::2], strict=True)
    theirs = any(b'"rsv":"' not in member and float(until) > now for member, until in pairs)
    first = next(iter([*([head] if head else later), *running]), b"")
    php = waits and not theirs and (is_object_job(first) or (not ours and OF_CLASS.search(first) is not None))
    seen = dict.fromkeys([*([head, last] if head and isinstance(last, bytes) else ()), *later])
    found = [payload for raw in seen if b'"held":' in raw and (payload := readable(raw)) is not None]
    held = [Held(each.uuid or each.id or "", each.job, each.held, each.display) for each in found if each.held]
    return display_of(first) if php else "", theirs, tuple(sorted(held, key=lambda each: each.since))


def display_of(raw: bytes) -> str:
    payload = readable(raw)
    return "*" if payload is None else payload.display


def is_object_job(payload: bytes) -> bool:
    """As turn.lua decides it, without parsing the JSON."""
    return OBJECT_JOB in payload


def server_memory(space: Any) -> tuple[int, int] | None:
    """Bytes that a Redis uses, and its maxmemory, or 0. None: it is a database or a cluster, or this user may not ask."""
    facts = memory_facts(space)
    return (int(facts[b"used_memory"]), int(facts.get(b"maxmemory", 0))) if b"used_memory" in facts else None


def memory_facts(space: Any) -> dict[bytes, bytes]:
    if hasattr(space, "connection") or hasattr(space, "nodes"):
        return {}
    (raw,) = space.call_many([("INFO", "memory")])
    names = rb"^(used_memory|mem_not_counted_for_evict|maxmemory|maxmemory_policy):([\w-]+)"
    return dict(re.findall(names, raw, re.M)) if isinstance(raw, bytes) else {}


def fullness(space: Any) -> str:
    """Why a Redis at its maxmemory refuses new jobs now, though its masters may still report. "" if it does not, evicts
    instead, or this user may not ask."""
    facts = memory_facts(space)
    most, buffers = (int(facts.get(name, 0)) for name in (b"maxmemory", b"mem_not_counted_for_evict"))
    used = int(facts.get(b"used_memory", 0)) - buffers
    if not most or used <= most or facts.get(b"maxmemory_policy") != b"noeviction":
        return ""
    return f"OOM, {used / (1 << 20):.1f} MB used, maxmemory is {most / (1 << 20):.1f} MB (noeviction)"


def refusal(store: KeyspaceStore, queues: Sequence[str] = ()) -> str:
    """Why this server refuses writes now (a replica, a full disk, too few replicas, no memory), in its own words; "" if it
    does not, or this user may not try. Changes nothing: ZADD XX of a key that never exists, see check_writes. queues: on a
    cluster each may be on another node. Call only in doubt: a server logs each command that its user may not call."""
    space, found = store.space, list[object]()
    try:
        if hasattr(space, "connection"):  # a database
            from qd.drivers.database.schema import check_writes  # loaded with the connection

            check_writes(space.connection)
        else:
            others = [f"{keys.ready(queue)}:probe" for queue in queues] if hasattr(space, "nodes") else []
            found = space.call_many([("ZADD", store.prefix + name, "XX", 0, "-") for name in (PROBE, *others)])
    except (ServerBusy, ServerRefused) as error:
        found = [error]
    refused = [each for each in found if isinstance(each, ServerBusy | ServerRefused)]
    return next((str(each) for each in refused if not isinstance(each, NeedsMending)), "")  # doctor checks the rights


def runs_long(worker: WorkerReport, now: float) -> bool:
    """Whether its job may never end: it has no timeout, and has run for more than an hour."""
    return bool(worker.job) and worker.timeout is None and worker.since is not None and now - worker.since > LONG


def stale(master: MasterReport, now: float) -> bool:
    return now - master.seen_at > STALE
