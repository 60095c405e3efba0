"""The state of masters, workers, queues and notes on the servers, and what is wrong with it. For `qd status`, `qd health`
and `qd doctor`.

    read_state -> State -> reasons -> Reason(kind, text: the fact, the thing with its value, the fix)

If a node of a cluster is unreachable, State has what the other nodes know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from qd.cli import context
from qd.cli.output import ago, count, duration
from qd.drivers.keyspace import keys
from qd.errors import ConnectionLost, NeedsMending, ServerBusy, ServerRefused
from qd.store import controls, masters, schedule
from qd.store.failed import FailedStore, Fill
from qd.store.masters import MasterReport, SchedulerReport, WorkerReport

if TYPE_CHECKING:
    from qd.config.settings import FailedSettings, Settings
    from qd.drivers.types import Sizes
    from qd.store.base import KeyspaceStore


T = TypeVar("T")
U = TypeVar("U")
MASTERS = "masters and their workers"
OBJECT_JOB = rb'"job":"Illuminate\\Queue\\CallQueuedHandler@call"'  # as JSON writes the two backslashes
NOTHING_KEPT = Fill()
HELD = 99  # reservations of a queue that are read
FRESH = 3.0  # seconds: a master that reported since then proves that its server takes writes
OLD = 10.0  # seconds a job has waited when its server may be the reason
PROBE = "qd:probe"  # a key that never exists, to try a write
STUCK = 10.0  # seconds in which nothing was taken from a queue with jobs
UNTAKEN = 60.0  # seconds a job for PHP may wait, if no master reports since when
STALE = 5.0  # seconds without a report; one comes each second
CRASHES, WITHIN = 5, 30.0  # this many workers of one master in this many seconds
REPLACED, APART = 5, 60.0  # keepers of one master, and the mean seconds between them
UNSCHEDULED = 5.0  # seconds without a scheduler where one is wanted; it is replaced within one
FULL = 0.8  # part of the failed store's limits; above it there is a warning
RECENT = 86400.0  # seconds for which commands warn after a failed job was dropped
GRACE = 10.0  # seconds after `qd restart`, or after a job arrived, in which masters may still be starting


class Partly:
    """away: nodes that do not answer -> why. unknown: what they have, in words."""

    def __init__(self) -> None:
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
        """Names searched on all nodes; those of the nodes that answer."""
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


@dataclass(frozen=True)
class QueueLine:
    """A queue and its contents.

    workers: those that serve it, idle or not. php: the next job is an object job of Laravel, and no PHP worker has
    reserved one. theirs: a PHP worker has reserved a job. failed: see store.failed.Fill. full: the used part of the failed
    store's limits; at 1.0 the next failed job drops the oldest. overdue: seconds since the first delayed job was due or
    the first lease ended; 0.0 if neither, or a worker serves the queue.
    """

    connection: str
    name: str
    sizes: Sizes
    paused: controls.Pause | None
    workers: int
    php: bool = False
    theirs: bool = False
    failed: Fill = NOTHING_KEPT
    full: float = 0.0
    overdue: float = 0.0


@dataclass(frozen=True)
class State:
    """What `qd status` shows, read at `now` (unix seconds, the server's clock).

    paused_entries: entries of the schedule, "*" for all. away: unreachable connections -> why; their queues are missing.
    refused: connections whose server refuses writes -> its reply. control: the control connection, which has the reports
    of masters. nodes: unreachable nodes of a cluster -> why. unknown: what is missing because of them, in words.
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

    @property
    def knows_masters(self) -> bool:
        return MASTERS not in self.unknown


def read_state(found: Settings, *, search: bool = True, also: Sequence[str] = ()) -> State:
    """search: include queues that are only found on the server. also: queues of the first connection. Raises
    ConnectionLost if the control connection is unreachable."""
    store, partly = context.store(found, found.control), Partly()
    reports = partly.read(store.space, MASTERS, list[MasterReport](), masters.masters, store)
    now = partly.read(store.space, "", time.time(), store.now)
    if context.given().connection:
        asked = context.places(found)
        reports = [master for master in reports if master.connection in asked]
    queues, away, refused = list[QueueLine](), dict[str, str](), dict[str, str]()
    for place in places(found, reports):
        try:
            of_place = store if place == found.control else context.store(found, place)
            own = lines(found, place, of_place, reports, now, partly, search=search, also=also)
            if place != found.control and any(waits(line) for line in own):
                names = [line.name for line in own]
                refused[place] = partly.read(of_place.space, "", "", refusal, of_place, names)

            queues += own
        except ConnectionLost as error:
            away[place] = str(error)
        also = ()
    paused_entries = partly.read(
        store.space, "paused entries", dict[str, controls.Pause](), schedule.paused, store, now
    )
    down = partly.read(store.space, "maintenance mode", None, controls.is_down, store)
    restart = partly.read(store.space, "the last restart", None, controls.last_restart, store)
    if not any(now - master.seen_at <= FRESH for master in reports):
        # The last call: a server that refuses may close the connection.
        refused[found.control] = partly.read(store.space, "", "", refusal, store)
    refused = {place: why for place, why in refused.items() if why}
    known = (now, down, restart, reports, queues, paused_entries, away, refused, found.control)
    return State(*known, partly.away, tuple(partly.unknown))


def places(found: Settings, reports: list[MasterReport]) -> list[str]:
    """The connection of -c, else the default one, those of [worker] and the pools, and those that masters work on. For
    a failover connection those that it sends to."""
    if context.given().connection:
        return context.places(found)
    worked = [one.work.connection for one in context.pools(found)] + [master.connection for master in reports]
    parts = [part for name in worked if name in found.connections for part in found.parts(name)]
    return list(dict.fromkeys([*context.places(found), *parts]))


def lines(
    found: Settings,
    place: str,
    store: KeyspaceStore,
    reports: list[MasterReport],
    now: float,
    partly: Partly,
    *,
    search: bool,
    also: Sequence[str] = (),
) -> list[QueueLine]:
    """One per queue that is worked on, configured, or has jobs, and one for the connection's own."""
    queue = context.queue(found, place)
    own = [*context.queues_named(found, place), found.connection(place).queue]
    there = [*partly.found(store.space, lambda: masters.queues_found(store)), *queue.queues()] if search else []
    named = dict.fromkeys([*masters.queues_of(reports).get(place, []), *own, *there, *also])
    space = getattr(queue, "space", None)
    found_sizes = {name: partly.read(space, f"queue {name}", None, queue.sizes, name) for name in named}
    sizes = {name: each for name, each in found_sizes.items() if each is not None}
    names = [*sizes]
    paused = controls.paused(store, names)
    alive = [master for master in reports if master.connection == place and not master.silent(now)]
    serve = {name: sum(len(m.workers) for m in alive if name in m.queues) for name in names}
    unserved = [name for name in names if (sizes[name].delayed or sizes[name].reserved) and not serve[name]]
    overdue = {name: overdue_of(store, name, now) for name in unserved}
    php = {name: of_php(store, name, now) for name in names if sizes[name].ready or overdue.get(name)}
    fills = dict(zip(names, FailedStore(store).fills(names), strict=True))
    return [
        QueueLine(
            *(place, name, sizes[name], paused.get(name), serve[name], *php.get(name, (False, False)), fills[name]),
            full=full(found.failed, sizes[name].failed, fills[name]),
            overdue=overdue.get(name, 0.0),
        )
        for name in names
    ]


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


def of_php(store: KeyspaceStore, queue: str, now: float) -> tuple[bool, bool]:
    """(php, theirs) of a QueueLine. A PHP worker between two jobs is recognized by its previous reservation; a dead one
    until its reservation ends."""
    ready, reserved = (store.prefix + key(queue) for key in (keys.ready, keys.reserved))
    head, held = store.space.call_many([("LINDEX", ready, 0), ("ZRANGE", reserved, 0, HELD, "WITHSCORES")])
    if isinstance(head, Exception) or not isinstance(held, list):
        return False, False
    pairs = zip(held[::2], held[1::2], strict=True)
    theirs = any(b'"rsv":"' not in member and float(until) > now for member, until in pairs)
    return head is not None and is_object_job(head) and not theirs, theirs


def is_object_job(payload: bytes) -> bool:
    """As turn.lua decides it, without parsing the JSON."""
    return OBJECT_JOB in payload


def waits(line: QueueLine) -> bool:
    return line.sizes.ready > 0 and (line.sizes.oldest_age or OLD) >= OLD


def refusal(store: KeyspaceStore, queues: Sequence[str] = ()) -> str:
    """Why this server refuses writes now (a replica, a full disk, too few replicas, no memory), in its own words; "" if it
    does not, or this user may not try. Changes nothing: ZADD XX of a key that never exists, DELETE of no row. queues: on a
    cluster each may be on another node. Call only in doubt: a server logs each command that its user may not call."""
    try:
        found = of_database(store.space) if hasattr(store.space, "connection") else of_redis(store, queues)
    except (ServerBusy, ServerRefused) as error:
        found = [error]
    refused = [each for each in found if isinstance(each, ServerBusy | ServerRefused)]
    return next((str(each) for each in refused if not isinstance(each, NeedsMending)), "")  # rights are doctor's


def of_redis(store: KeyspaceStore, queues: Sequence[str]) -> list[object]:
    names = [PROBE, *(f"{keys.ready(queue)}:probe" for queue in queues)] if hasattr(store.space, "nodes") else [PROBE]
    return store.space.call_many([("ZADD", store.prefix + name, "XX", 0, "-") for name in names])


def of_database(space: Any) -> list[object]:
    from qd.drivers.database.migrations import check_writes  # loaded with the connection

    check_writes(space.connection)
    return []


@dataclass(frozen=True)
class Reason:
    """kind: a word for programs. queue, master: what it is about, or ""."""

    kind: str
    text: str
    queue: str = ""
    master: str = ""


@dataclass(frozen=True)
class HealthThresholds:
    """The values of --max-ready, --max-age (seconds) and --expect, None if not given; and --allow-none."""

    max_ready: int | None = None
    max_age: float | None = None
    expect: int | None = None
    allow_none: bool = False


def reasons(state: State, limits: HealthThresholds) -> Iterator[Reason]:
    yield from nodes_away(state)
    yield from refusals(state)
    if not blind(state):
        yield from too_few(state, limits)
        for master in state.masters:
            yield from of_master(master, state)
    for line in state.queues:
        if state.knows_masters:
            yield from of_queue(line, state)
        yield from over(line, limits, state)


# -- servers

PRIMARY = "it is a replica, or a failover is under way: point the url at the primary"
WAYS = {
    "READONLY": PRIMARY,
    "read-only": PRIMARY,
    "MISCONF": "free its disk and see its log",
    "NOREPLICAS": "start its replicas, or lower min-replicas-to-write",
    "OOM": "let workers make room, or raise maxmemory",
}


def nodes_away(state: State) -> Iterator[Reason]:
    for place, why in state.nodes.items():
        lacks = f"; not known: {', '.join(state.unknown)}" if state.unknown else ""
        yield Reason("node", f"node {place} of the cluster is unreachable ({why}){lacks}; start it, or see its log")


def refusals(state: State) -> Iterator[Reason]:
    for place, text in state.refused.items():
        yield Reason("refused", f"connection {place}: {refused(text)}")


def blind(state: State) -> bool:
    """Whether masters are silent because the server refuses their reports: their state is unknown."""
    return not state.knows_masters or (state.control in state.refused and not living(state))


def refused(text: str) -> str:
    return f"the server refuses writes: {text.rstrip('.')}; {way_out(text)}"


def way_out(text: str) -> str:
    return next((way for word, way in WAYS.items() if word in text), "see its log")


# -- masters


def too_few(state: State, limits: HealthThresholds) -> Iterator[Reason]:
    """A silent master is a separate reason."""
    there = len(living(state))
    if restarting(state):
        return
    if limits.expect is not None and there < limits.expect:
        fact = f"{count(there, 'master')} of the {limits.expect} expected"
        yield Reason("masters", f"{fact}; start `qd work` where it is missing (`qd status` names those that run)")
    elif not state.masters and not limits.allow_none:
        fact = "no master runs on any host; start `qd work`, or pass --allow-none if that is intended"
        yield Reason("no-master", fact)


def title_of(master: MasterReport) -> str:
    return f"{master.pool or 'default'}@{master.host}"


def of_master(master: MasterReport, state: State) -> Iterator[Reason]:
    who, title = f"{title_of(master)} (pid {master.pid})", title_of(master)
    if stale(master, state.now):
        if not replaced(master, state):
            yield Reason("silent-master", f"{who}: {silence(master, state.now)}", master=title)
        return
    if master.hangs:
        yield Reason("hung-master", f"{who}: {hung(master)}", master=title)
    crashed = [at for at in master.crashes if state.now - at <= WITHIN]
    if len(crashed) >= CRASHES:
        fact = f"{len(crashed)} workers crashed in the last {duration(WITHIN)}; see `worker.died` in its log"
        yield Reason("crashes", f"{who}: {fact}", master=title)
    for slot in master.silent_workers:
        yield Reason("silent-worker", f"{who}: {silent(master, slot)}", master=title)
    if master.unscheduled is not None and state.now - master.unscheduled > UNSCHEDULED:
        fact = f"no scheduler for {duration(state.now - master.unscheduled)}; see `scheduler.` in its log"
        yield Reason("scheduler", f"{who}: {fact}", master=title)
    up = state.now - master.booted_at
    if master.keeper_restarts >= REPLACED and up / master.keeper_restarts < APART:
        fact = f"its keeper ended {master.keeper_restarts} times in {duration(up)}; see `keeper.` in its log"
        yield Reason("keeper", f"{who}: {fact}", master=title)


def silent(master: MasterReport, slot: int) -> str:
    children: list[tuple[str, WorkerReport | SchedulerReport]] = [("worker", worker) for worker in master.workers]
    children += [("scheduler", scheduler) for scheduler in master.schedulers]
    names = (f"{word} {slot} (pid {child.pid})" for word, child in children if child.slot == slot)
    what = next(names, f"worker {slot}")
    return f"{what} stopped answering; USR1 to the master writes its stack to the log"


def silence(master: MasterReport, now: float) -> str:
    return (
        f"its keeper has not reported for {duration(now - master.seen_at)}; check whether it runs there and reaches this "
        f"server; if that host is gone: HDEL qd:masters {master.token}"
    )


def hung(master: MasterReport) -> str:
    text = f"the master has not answered for {duration(master.master_silent)}, though its keeper reports"
    return f"{text}; kill -9 {master.pid} on {master.host}, its supervisor restarts it"


def stale(master: MasterReport, now: float) -> bool:
    return now - master.seen_at > STALE


def living(state: State) -> list[MasterReport]:
    return [master for master in state.masters if not stale(master, state.now)]


def replaced(gone: MasterReport, state: State) -> bool:
    """Whether another master of the same pool has started since it fell silent, such as a new container."""
    others = [m for m in living(state) if m.pool == gone.pool and m.token != gone.token]
    return any(other.booted_at > gone.seen_at for other in others)


# -- queues


@dataclass(frozen=True)
class Untaken:
    """Why no worker takes the ready jobs. kind: that of a Reason, "" if it is no reason by itself."""

    kind: str
    fact: str
    way: str


def of_queue(line: QueueLine, state: State) -> Iterator[Reason]:
    why = untaken(line, state) if line.sizes.ready or line.overdue else None
    if why is not None and why.kind:
        yield Reason(why.kind, f"queue '{line.name}': {waiting(line)} and {why.fact}; {why.way}", queue=line.name)


def waiting(line: QueueLine) -> str:
    if line.sizes.ready:
        return f"{line.sizes.ready} ready"
    if not line.sizes.delayed:
        return f"{line.sizes.reserved} reserved, the first lease ended {ago(line.overdue)},"
    return f"{line.sizes.delayed} delayed, the first due {ago(line.overdue)},"


def untaken(line: QueueLine, state: State) -> Untaken:
    """The first of these that applies."""
    if line.paused:
        return Untaken("", "it is paused", f"`qd resume {line.name}`")
    if shut(line, state):
        if state.down:
            return Untaken("", "maintenance mode", "`qd up`")
        return Untaken("", "Laravel's maintenance mode", "`php artisan up`")
    serving = [m for m in living(state) if serves(m, line)]
    since = stuck_since(line, serving)
    stuck_for = 0.0 if since is None else state.now - since
    if line.php and (stuck_for > STUCK or (line.sizes.oldest_age or 0.0) > UNTAKEN):
        text = f"start `php artisan queue:work --queue={line.name}`, or give each language a queue of its own"
        return Untaken("php", "the first is an object job of Laravel that no PHP worker takes", text)
    if not serving and (line.php or line.theirs):
        return Untaken("", "only PHP workers serve it", "add PHP workers")
    if not serving:
        return unserved(line, state)
    if not any(master.workers for master in serving):
        kind = "stuck" if stuck_for > STUCK else ""
        return Untaken(kind, f"{names_of(serving)} has no worker that is up", "see the `worker.` lines of its log")
    if stuck_for > STUCK:
        return Untaken("stuck", *stuck(serving, stuck_for))
    if not any(works(master) for master in serving):
        return Untaken("", f"{names_of(serving)} is {serving[0].state}", "CONT to a paused master resumes it")
    if all(busy(master) for master in serving if works(master)):
        return Untaken("", "all workers are busy", "add workers")
    return Untaken("", "", "add workers")


def unserved(line: QueueLine, state: State) -> Untaken:
    kind = "unserved" if old(line) and not restarting(state) else ""
    silent = [m for m in state.masters if stale(m, state.now) and serves(m, line) and not replaced(m, state)]
    start = f"start `qd work {line.name}`"
    if blind(state):
        return Untaken("", "no master can report", "fix the server that refuses writes")
    if silent:
        seconds = duration(state.now - silent[0].seen_at)
        return Untaken(kind, f"{names_of(silent)}, which serves it, has not reported for {seconds}", start)
    if not living(state):
        return Untaken(kind, "no master runs", start)
    return Untaken(kind, "no worker serves it", f"{start}, or add it to the queues of a pool that runs")


def names_of(masters: list[MasterReport]) -> str:
    return ", ".join(f"{title_of(m)} (pid {m.pid})" for m in masters[:3])


def of_failed(line: QueueLine, now: float) -> Iterator[tuple[str, str]]:
    """Warnings about the failed store of a queue, each with a fix. No job waits because of it."""
    way = f"raise [failed] max_bytes (or max_count), or retry or forget some: qd failed list -q {line.name}"
    at = line.failed.dropped_at
    if at is not None and now - at < RECENT:
        text = f"{count(line.failed.dropped, 'failed job')} of queue '{line.name}' dropped to make room for newer ones"
        yield f"{text}, the last {ago(max(0.0, now - at))}", way
    elif line.full >= FULL:
        used = f"{line.sizes.failed} of them, {line.failed.bytes / (1 << 20):.1f} MB"
        text = f"the failed jobs of queue '{line.name}' use {line.full:.0%} of their limits ({used})"
        yield f"{text}; beyond them the oldest are dropped", way


def shut(line: QueueLine, state: State) -> bool:
    """Whether maintenance mode stops it: qd's, or Laravel's on every host that serves it."""
    if state.down is not None and line.name not in state.down.allow:
        return True
    serving = [master for master in living(state) if serves(master, line)]
    return bool(serving) and all(master.laravel_down for master in serving)


def serves(master: MasterReport, line: QueueLine) -> bool:
    return master.connection == line.connection and line.name in master.queues


def stuck_since(line: QueueLine, serving: list[MasterReport]) -> float | None:
    """Since when no worker took anything although one could. None if it moves, or all workers are busy elsewhere."""
    able = [m for m in serving if works(m) and not busy(m)]
    moments = [m.stuck[line.name] for m in able if line.name in m.stuck]
    return max(moments) if moments and len(moments) == len(able) else None


def works(master: MasterReport) -> bool:
    """Whether it takes jobs; in maintenance mode those of allowed queues."""
    return master.state == "running" or (master.state == "down" and not master.laravel_down)


def busy(master: MasterReport) -> bool:
    """Whether each worker runs a job: then the queue is behind, not stuck (see --max-age)."""
    return bool(master.workers) and all(worker.job for worker in master.workers)


def stuck(serving: list[MasterReport], seconds: float) -> tuple[str, str]:
    hands = count(sum(len(master.workers) for master in serving), "worker")
    fact = f"nothing taken for {duration(seconds)} by the {hands} of {names_of(serving)}"
    return fact, "`qd status` shows what they do, USR1 to the master writes all stacks to its log"


def old(line: QueueLine) -> bool:
    """Unknown counts as old: payloads of Laravel 8 have no creation time."""
    if not line.sizes.ready:
        return line.overdue >= GRACE
    return line.sizes.oldest_age is None or line.sizes.oldest_age >= GRACE


def restarting(state: State) -> bool:
    return state.restart is not None and state.now - state.restart.at < GRACE


def over(line: QueueLine, limits: HealthThresholds, state: State) -> Iterator[Reason]:
    why = untaken(line, state)
    rest = f" ({why.fact}); {why.way}" if why.fact else f"; {why.way}"
    ready, age = line.sizes.ready, line.sizes.oldest_age if line.sizes.ready else line.overdue
    if limits.max_ready is not None and ready > limits.max_ready:
        what = f"queue '{line.name}': {ready} ready, over --max-ready {limits.max_ready}{rest}"
        yield Reason("max-ready", what, queue=line.name)
    if limits.max_age is not None and age is not None and age > limits.max_age:
        what = (
            f"queue '{line.name}': its oldest job waits for {duration(age)}, over --max-age {duration(limits.max_age)}"
        )
        yield Reason("max-age", f"{what}{rest}", queue=line.name)
