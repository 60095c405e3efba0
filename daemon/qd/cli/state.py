"""What stands on the server at this moment: masters and their workers, queues, stamps. `status` and `health` read here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qd.cli import context
from qd.cli.partly import MASTERS, Partly
from qd.connectors.keyspace import keys
from qd.errors import ConnectionLost, NeedsMending, ServerBusy, ServerRefused
from qd.store import hosts, schedule, stamps
from qd.store.failed import FailedStore, Fill

if TYPE_CHECKING:
    from qd.config import FailedSettings, Settings
    from qd.connectors.base import Sizes
    from qd.store.keyspace import KeyspaceStore

OBJECT_JOB = rb'"job":"Illuminate\\Queue\\CallQueuedHandler@call"'  # as JSON writes the two backslashes
NOTHING_KEPT = Fill()
HELD = 99  # reservations of a queue that are looked at
FRESH = 3.0  # seconds: a master that reported since then shows that its server takes writes
OLD = 10.0  # seconds that a job waits where its server may be why
PROBE = "qd:probe"  # a key that is never made: whether the server would take a write


@dataclass(frozen=True)
class Line:
    """A queue and what is in it. workers: those that serve it, idle or not. php: whether the next job in line is an object
    job of Laravel and no PHP worker has one in hand. theirs: whether a PHP worker has a job of this queue in hand. failed:
    see store.failed.Fill; full: the part of the failed store's bounds that is used, 1.0: the next failed job drops the
    oldest. overdue: seconds since the first delayed job was due or the first lease ended, 0.0 if neither or a
    worker serves the queue."""

    connection: str
    name: str
    sizes: Sizes
    paused: stamps.Pause | None
    workers: int
    php: bool = False
    theirs: bool = False
    failed: Fill = NOTHING_KEPT
    full: float = 0.0
    overdue: float = 0.0


@dataclass(frozen=True)
class State:
    """Everything that `qd status` says, read at `now` (unix seconds, the server's clock). away: connections whose server did
    not answer, each with what is wrong: their queues are missing. refused: connections whose server takes no writes, each
    with its answer, as far as there was doubt. control: the control connection, where masters report. nodes: those of a
    cluster that did not answer, each with what is wrong; unknown: what is missing for that, in words."""

    now: float
    down: stamps.Down | None
    restart: stamps.Restart | None
    masters: list[hosts.Master]
    queues: list[Line]
    paused_entries: dict[str, stamps.Pause] = field(default_factory=dict)  # entries that are paused, "*" for all
    away: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    control: str = ""
    nodes: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def knows_masters(self) -> bool:
        return MASTERS not in self.unknown


def looked(found: Settings, *, search: bool = True, also: Sequence[str] = ()) -> State:
    """search: look for queues that nobody names, too. also: queues of the first connection. Raises ConnectionLost: the
    control connection is away."""
    store, partly = context.store(found, found.control), Partly()
    masters = partly.read(store.space, MASTERS, list[hosts.Master](), hosts.masters, store)
    now = partly.read(store.space, "", time.time(), store.now)
    if context.given().connection:
        asked = context.places(found)
        masters = [master for master in masters if master.connection in asked]
    queues, away, refused = list[Line](), dict[str, str](), dict[str, str]()
    for place in places(found, masters):
        try:
            beside = store if place == found.control else context.store(found, place)
            own = lines(found, place, beside, masters, now, partly, search=search, also=also)
            if place != found.control and any(waits(line) for line in own):
                names = [line.name for line in own]
                refused[place] = partly.read(beside.space, "", "", refusal, beside, names)
            queues += own
        except ConnectionLost as error:
            away[place] = str(error)
        also = ()
    paused_entries = partly.read(store.space, "paused entries", dict[str, stamps.Pause](), schedule.paused, store, now)
    down = partly.read(store.space, "maintenance mode", None, stamps.is_down, store)
    restart = partly.read(store.space, "the last restart", None, stamps.last_restart, store)
    if not any(now - master.seen_at <= FRESH for master in masters):
        # The last call: a server that refuses may hang up.
        refused[found.control] = partly.read(store.space, "", "", refusal, store)
    refused = {place: said for place, said in refused.items() if said}
    known = (now, down, restart, masters, queues, paused_entries, away, refused, found.control)
    return State(*known, partly.away, tuple(partly.unknown))


def places(found: Settings, masters: list[hosts.Master]) -> list[str]:
    """The connections to look at: the one asked for, else the default one, those of [worker] and the pools, and those that
    masters work on. Of a failover connection those that it sends to."""
    if context.given().connection:
        return context.places(found)
    worked = [one.work.connection for one in context.pools(found)] + [master.connection for master in masters]
    names = [
        *context.places(found),
        *[part for name in worked if name in found.connections for part in found.parts(name)],
    ]
    return list(dict.fromkeys(names))


def lines(
    found: Settings,
    place: str,
    store: KeyspaceStore,
    masters: list[hosts.Master],
    now: float,
    partly: Partly,
    *,
    search: bool,
    also: Sequence[str] = (),
) -> list[Line]:
    """One for each queue that is worked on or configured, that has jobs, or is the connection's own."""
    queue = context.queue(found, place)
    own = [*context.queues_named(found, place), found.connection(place).queue]
    there = [*partly.found(store.space, lambda: hosts.queues_found(store)), *queue.queues()] if search else []
    named = dict.fromkeys([*hosts.queues_of(masters).get(place, []), *own, *there, *also])
    space = getattr(queue, "space", None)
    found_sizes = {name: partly.read(space, f"queue {name}", None, queue.sizes, name) for name in named}
    sizes = {name: each for name, each in found_sizes.items() if each is not None}
    names = [*sizes]
    paused = stamps.paused(store, names)
    alive = [master for master in masters if master.connection == place and not master.silent(now)]
    serve = {name: sum(len(m.workers) for m in alive if name in m.queues) for name in names}
    unserved = [name for name in names if (sizes[name].delayed or sizes[name].reserved) and not serve[name]]
    overdue = {name: overdue_of(store, name, now) for name in unserved}
    php = {name: of_php(store, name, now) for name in names if sizes[name].ready or overdue.get(name)}
    fills = dict(zip(names, FailedStore(store).fills(names), strict=True))
    return [
        Line(
            *(place, name, sizes[name], paused.get(name), serve[name], *php.get(name, (False, False)), fills[name]),
            full=full(found.failed, sizes[name].failed, fills[name]),
            overdue=overdue.get(name, 0.0),
        )
        for name in names
    ]


def full(bounds: FailedSettings, count: int, fill: Fill) -> float:
    """Of the bound that is nearer."""
    if not bounds.enabled:
        return 0.0
    return max(fill.bytes / bounds.max_bytes, count / bounds.max_count if bounds.max_count else 0.0)


def overdue_of(store: KeyspaceStore, queue: str, now: float) -> float:
    """Seconds since the first delayed job was due, or the first lease ended. Only a keeper of the queue makes them ready."""
    names = [store.prefix + key(queue) for key in (keys.delayed, keys.reserved)]
    firsts = store.space.call_many([("ZRANGE", name, 0, 0, "WITHSCORES") for name in names])
    ended = [now - float(first[1]) for first in firsts if isinstance(first, list) and first]
    return max([0.0, *ended])


def of_php(store: KeyspaceStore, queue: str, now: float) -> tuple[bool, bool]:
    """(php, theirs) of a Line. A PHP worker that takes one job after the other is seen with the one before; one that died is
    seen until its reservation ends."""
    ready, reserved = (store.prefix + key(queue) for key in (keys.ready, keys.reserved))
    head, held = store.space.call_many([("LINDEX", ready, 0), ("ZRANGE", reserved, 0, HELD, "WITHSCORES")])
    if isinstance(head, Exception) or not isinstance(held, list):
        return False, False
    pairs = zip(held[::2], held[1::2], strict=True)
    theirs = any(b'"rsv":"' not in member and float(until) > now for member, until in pairs)
    return head is not None and is_object_job(head) and not theirs, theirs


def is_object_job(payload: bytes) -> bool:
    """As turn.lua sees it: without reading the JSON of what is not ours."""
    return OBJECT_JOB in payload


def waits(line: Line) -> bool:
    return line.sizes.ready > 0 and (line.sizes.oldest_age or OLD) >= OLD


def refusal(store: KeyspaceStore, queues: Sequence[str] = ()) -> str:
    """Why this server takes no writes now (a replica, a full disk, too few replicas, no memory), in its own words. "": it
    does, or this user may not ask. Changes nothing: ZADD XX of a key that never exists, DELETE of no row. queues: on a
    cluster each may be on another node. Ask only in doubt: a server logs each command that its user may not send."""
    try:
        found = of_database(store.space) if hasattr(store.space, "link") else of_redis(store, queues)
    except (ServerBusy, ServerRefused) as error:
        found = [error]
    refused = [each for each in found if isinstance(each, ServerBusy | ServerRefused)]
    return next((str(each) for each in refused if not isinstance(each, NeedsMending)), "")  # rights are doctor's


def of_redis(store: KeyspaceStore, queues: Sequence[str]) -> list[object]:
    names = [PROBE, *(f"{keys.ready(queue)}:probe" for queue in queues)] if hasattr(store.space, "nodes") else [PROBE]
    return store.space.call_many([("ZADD", store.prefix + name, "XX", 0, "-") for name in names])


def of_database(space: Any) -> list[object]:
    from qd.connectors.database.rights import check_writes  # loaded with the connection

    check_writes(space.link)
    return []
