"""What stands on the server at this moment: masters and their workers, queues, stamps. `status` and `health` read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qd.cli import common
from qd.connectors.keyspace import keys
from qd.errors import ConnectionLost
from qd.store import hosts, schedule, stamps
from qd.store.failed import FailedStore, Fill

if TYPE_CHECKING:
    from qd.config import FailedSettings, Settings
    from qd.connectors.base import Sizes
    from qd.store.keyspace import KeyspaceStore

OBJECT_JOB = rb'"job":"Illuminate\\Queue\\CallQueuedHandler@call"'  # as JSON writes the two backslashes
NOTHING_KEPT = Fill()
HELD = 99  # reservations of a queue that are looked at


@dataclass(frozen=True)
class Line:
    """A queue and what stands in it. workers: those that serve it, idle or not. php: whether the next job in line is an
    object job of Laravel and no PHP worker has one in hand. failed: see store.failed.Fill; full: the part of the failed
    store's bounds that is used, 1.0: the next failed job drops the oldest."""

    connection: str
    name: str
    sizes: Sizes
    paused: stamps.Pause | None
    workers: int
    php: bool = False
    failed: Fill = NOTHING_KEPT
    full: float = 0.0


@dataclass(frozen=True)
class State:
    """Everything that `qd status` says, read at `now` (unix seconds, the server's clock). away: connections whose server did
    not answer, each with what is wrong: their queues are missing."""

    now: float
    down: stamps.Down | None
    restart: stamps.Restart | None
    masters: list[hosts.Master]
    queues: list[Line]
    paused_entries: dict[str, stamps.Pause] = field(default_factory=dict)  # entries that are paused, "*" for all
    away: dict[str, str] = field(default_factory=dict)


def looked(found: Settings, *, search: bool = True, also: Sequence[str] = ()) -> State:
    """search: look for queues that nobody names, too. also: queues of the first connection. Raises ConnectionLost: the
    control connection is away."""
    store = common.store(found, found.control)
    masters, now = hosts.masters(store), store.now()
    if common.given().connection:
        asked = common.places(found)
        masters = [master for master in masters if master.connection in asked]
    queues, away = list[Line](), dict[str, str]()
    for place in places(found, masters):
        try:
            queues += lines(found, place, masters, now, search=search, also=also)
        except ConnectionLost as error:
            away[place] = str(error)
        also = ()
    paused_entries = schedule.paused(store, now)
    return State(now, stamps.is_down(store), stamps.last_restart(store), masters, queues, paused_entries, away)


def places(found: Settings, masters: list[hosts.Master]) -> list[str]:
    """The connections to look at: the one asked for, else the default one and those that masters here work on. Nothing
    stands on one of failover: those that it sends to are looked at."""
    if common.given().connection:
        return common.places(found)
    names = [*common.places(found), *[m.connection for m in masters if m.connection in found.connections]]
    return list(dict.fromkeys(names))


def lines(
    found: Settings,
    place: str,
    masters: list[hosts.Master],
    now: float,
    *,
    search: bool,
    also: Sequence[str] = (),
) -> list[Line]:
    """One for each queue that is worked on or configured, that has jobs, or is the connection's own."""
    store, queue = common.store(found, place), common.queue(found, place)
    own = [*common.queues_named(found, place), found.connection(place).queue]
    there = hosts.queues_found(store) if search else []
    names = dict.fromkeys([*hosts.queues_of(masters).get(place, []), *own, *there, *also])
    paused = stamps.paused(store, names)
    alive = [master for master in masters if master.connection == place and not master.silent(now)]
    serve = {name: sum(len(m.workers) for m in alive if name in m.queues) for name in names}
    sizes = {name: queue.sizes(name) for name in names}
    php = {name: for_php(store, name) for name in names if sizes[name].ready}
    fills = dict(zip(names, FailedStore(store).fills(list(names)), strict=True))
    return [
        Line(
            *(place, name, sizes[name], paused.get(name), serve[name], php.get(name, False), fills[name]),
            full=full(found.failed, sizes[name].failed, fills[name]),
        )
        for name in names
    ]


def full(bounds: FailedSettings, count: int, fill: Fill) -> float:
    """Of the bound that is nearer."""
    if not bounds.enabled:
        return 0.0
    return max(fill.bytes / bounds.max_bytes, count / bounds.max_count if bounds.max_count else 0.0)


def for_php(store: KeyspaceStore, queue: str) -> bool:
    """Whether the next job in line is an object job of Laravel, and no job of this queue is in a PHP worker's hands: one
    that takes the next job at once would be seen with the one before."""
    ready, reserved = (store.prefix + key(queue) for key in (keys.ready, keys.reserved))
    head, held = store.space.call_many([("LINDEX", ready, 0), ("ZRANGE", reserved, 0, HELD)])
    if not isinstance(head, bytes) or not isinstance(held, list):
        return False
    return is_object_job(head) and all(b'"rsv":"' in member for member in held)


def is_object_job(payload: bytes) -> bool:
    """As turn.lua sees it: without reading the JSON of what is not ours."""
    return OBJECT_JOB in payload
