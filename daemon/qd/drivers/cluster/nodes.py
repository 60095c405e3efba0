"""Which server of a cluster has which slot: asked of any of them at first, after a redirection, and when one is away.

What stands on the others is not to wait for a server that is away: it is looked at again after a rest, for a moment only,
and the rest is ten times as long as that.

Each server is reached by a connection of redis-py (redis/client.py). Its NodesManager is not used: it makes whole clients
with pools and retries, holds a lock while it asks one server after another, and knows no server that rests.

What a name is called on a cluster, and which slot it stands in.

All keys of a queue stand in one slot: `queues:NAME:delayed` is `queues:{NAME}:delayed` there, as Laravel 13 has it
(Queue/RedisQueue.php), unless NAME has braces of its own with something in them. So do those of a batch, of errors and
their rest, and those of the ticks. Everything else is a slot of its own.

The url of a cluster, taken apart.
"""

from __future__ import annotations

import re
import time
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from qd.drivers.keyspace.keys import ON_CLUSTER
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.url import RedisUrl
from qd.errors import (
    ConfigError,
    ConnectionLost,
    NoAnswer,
    OtherKind,
    ServerBusy,
    ServerRefused,
    Unreachable,
    WrongPassword,
)
from qd.options.kinds import BESIDE

REST = 0.2  # seconds that a server that is away is left alone, at least
LOOK = (0.1, 0.5)  # seconds that a look at it lasts, the first one and the longest
TIMES = 10.0  # rests as long as a look has lasted
ASKED = 0.1  # seconds between two looks at the whole map


class Node:
    """A server, and the connection to it."""

    def __init__(self, place: str, connection: RedisConnection) -> None:
        self.place, self.connection = place, connection
        self._away_until, self._look, self.why = 0.0, 0.0, ""

    def ready(self) -> RedisConnection:
        """Its connection, made where there is none. Raises as Wire.connect; at once where it was away just now."""
        connection = self.connection
        if not connection.connected:
            began = time.monotonic()
            if began < self._away_until:
                raise Unreachable(self.why)
            try:
                self._connect()
            except (ConnectionLost, OSError) as error:
                if not isinstance(error, WrongPassword):
                    self._rests(time.monotonic() - began, error)
                raise
            self._away_until = self._look = 0.0
        return connection

    def _connect(self) -> None:
        if not self._look:
            self.connection.connect()
            return
        with self.connection.within(min(self._look, self.connection.timeout)):
            self.connection.connect()

    def broke(self, error: Exception) -> None:
        """A call on one of the connections to it has said so. One that was waited for in vain is looked at after a rest."""
        if isinstance(error, NoAnswer):
            self.connection.close()
            self._rests(self.connection.timeout, error)

    def _rests(self, waited: float, why: object) -> None:
        self._look = min(LOOK[1], 2 * self._look) or LOOK[0]
        self._away_until = time.monotonic() + max(REST, TIMES * min(waited, self._look))
        self.why = str(why)

    @property
    def resting(self) -> bool:
        return time.monotonic() < self._away_until


class Nodes:
    """`make` opens a connection to a url."""

    def __init__(self, url: str, make: Callable[[str], RedisConnection]) -> None:
        self.seeds, self._make = seeds_of(url), make
        self._by_place: dict[str, Node] = {}
        self._starts: list[int] = []  # of ranges, sorted
        self._ranges: list[tuple[int, Node]] = []  # the last slot of each, and who has it
        self._moved: dict[int, Node] = {}  # told since the map was read
        self.stale = True
        self._asked_at = float("-inf")

    @property
    def place(self) -> str:
        return ",".join(self.seeds.places)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._by_place.values()))

    def primaries(self) -> list[Node]:
        """All that have slots, each once. Raises ConnectionLost when none can be asked."""
        self._fresh()
        return list(dict.fromkeys([node for _, node in self._ranges]))

    def of(self, slot: int) -> Node:
        """Who has it. Raises ConnectionLost when nobody can be asked, ServerBusy where nobody has it."""
        if self.stale:
            self._fresh()
        found = self._moved.get(slot)
        if found is not None:
            return found
        at = bisect_right(self._starts, slot) - 1
        if at >= 0 and slot <= self._ranges[at][0]:
            return self._ranges[at][1]
        self.stale = True
        raise ServerBusy(f"slot {slot} of the cluster at {self.place} is on no server now")

    def at(self, place: str, beside: str = "") -> Node:
        """The server at `host:port`; without a host it is that of `beside`."""
        host, _, port = place.rpartition(":")
        if not host:
            place = f"{beside.rpartition(':')[0]}:{port}"
        if ":" in host and not host.startswith("["):
            place = f"[{host}]:{port}"
        if place not in self._by_place:
            self._by_place[place] = Node(place, self._make(self.seeds.url(place)))
        return self._by_place[place]

    def moved(self, slot: int, node: Node) -> None:
        """A redirection says so: the map is old."""
        self._moved[slot] = node
        self.stale = True

    def _fresh(self) -> None:
        """Read the map anew where it is old, as well as that goes."""
        at = time.monotonic()
        if not self.stale or (self._ranges and at - self._asked_at < ASKED):
            return
        self._asked_at = at
        try:
            self._read()
        except (ConnectionLost, ServerRefused):
            if not self._ranges:
                raise

    def _read(self) -> None:
        why: Exception | None = None
        known = [*self._by_place.values(), *[self.at(place) for place in self.seeds.places]]
        for node in sorted(dict.fromkeys(known), key=lambda node: (node.resting, not node.connection.connected)):
            try:
                reply = node.ready().call("CLUSTER", "SLOTS")
                if reply:
                    self._keep(node, reply)
                    return
            except WrongPassword:
                raise
            except ServerRefused as error:
                if "cluster support disabled" in str(error):
                    raise OtherKind(
                        f"the server at {node.place} is no part of a cluster: write redis://{node.place} into the url"
                    ) from None
                why = error
            except ConnectionLost as error:
                node.broke(error)
                why = why or error
        raise why or ServerBusy(f"the cluster at {self.place} has no slots on any server yet")

    def _keep(self, asked: Node, reply: Sequence[Any]) -> None:
        ranges = sorted((int(each[0]), int(each[1]), self._named(each[2], asked)) for each in reply)
        self._starts = [first for first, _, _ in ranges]
        self._ranges = [(last, self.at(place)) for _, last, place in ranges]
        self._moved.clear()
        self.stale = False
        in_use = {node.place for _, node in self._ranges}
        for place in [place for place in self._by_place if place not in in_use]:
            if self._by_place[place] is not asked:
                self._by_place.pop(place).connection.close()

    def _named(self, told: Sequence[Any], asked: Node) -> str:
        """host:port of a server as it is told; no host, or `?`, is the one that was asked."""
        host = told[0].decode() if isinstance(told[0], bytes) else ""
        if host in ("", "?"):
            host = asked.place.rpartition(":")[0].strip("[]")
        return f"[{host}]:{told[1]}" if ":" in host else f"{host}:{told[1]}"


SLOTS = 16384
MOST = 10_000  # names that are remembered
_TAGGED = re.compile(r"\{[^}]+\}")
BORROWED = "{qd:at:"  # where another connection keeps its own, all of it in one slot: drivers/connections.py
_GROUPS = (
    re.compile(r"(?P<kind>qd:batch:)(?P<name>[^:]+)(?P<ending>:\w+)?"),
    re.compile(r"(?P<kind>qd:(?:errors|rest):)(?P<name>.+)(?P<ending>)"),
    re.compile(r"(?P<kind>qd:)(?P<name>ticks)(?P<ending>:\w+)?"),
)
_REAL = re.compile(r"(queues:|qd:(?:(?:batch|errors|rest):)?)\{([^{}]+)\}(.*)", re.DOTALL)


def slot_of(key: str | bytes) -> int:
    """As every server reckons it: CRC16 (XMODEM) of the first {...} that is not empty, or of all."""
    raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    start = raw.find(b"{")
    if start >= 0 and (end := raw.find(b"}", start + 1)) > start + 1:
        raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


class Names:
    """Those below `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._known: dict[str, tuple[str, int]] = {}

    def placed(self, name: str) -> tuple[str, int]:
        """What it is called, and its slot. Raises ServerRefused for a queue that cannot stand there."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            real = self._real(name)
            found = self._known[name] = real, slot_of(real)
        return found

    def real(self, name: str) -> str:
        return self.placed(name)[0]

    def slot(self, name: str) -> int:
        return self.placed(name)[1]

    def is_borrowed(self, name: str) -> bool:
        """Whether it is one of another connection's, which stand together in one slot: steps are steps there, and names are
        as they are everywhere."""
        return name.startswith(BORROWED, len(self.prefix))

    def _real(self, name: str) -> str:
        if not name.startswith(self.prefix) or self.is_borrowed(name):
            return name
        return self.prefix + tagged(name[len(self.prefix) :])

    def said(self, real: str) -> str | None:
        """The name of a key that stands there. None: one that only a cluster has."""
        body = real.removeprefix(self.prefix)
        start = real[: len(real) - len(body)]
        found = _REAL.fullmatch(body)
        if found is None or self.is_borrowed(real):
            return None if body.startswith("queues:") and body.endswith(ON_CLUSTER) else real
        kind, name, ending = found.groups()
        if ending in ON_CLUSTER:
            return None
        its_own = kind == "queues:" and ending not in ("", *BESIDE)  # braces of a queue's own name
        return real if its_own else f"{start}{kind}{name}{ending}"


def tagged(name: str) -> str:
    if name.startswith("queues:"):
        return tagged_queue(name)
    for group in _GROUPS:
        found = group.fullmatch(name)
        if found is not None:
            return f"{found['kind']}{{{found['name']}}}{found['ending'] or ''}"
    return name


def tagged_queue(name: str) -> str:
    queue, ending = split(name)
    if _TAGGED.search(queue):
        return name
    if queue.startswith("}"):
        raise ServerRefused(f"queue '{queue}' cannot stand on a cluster: its name begins with a closing brace")
    return f"queues:{{{queue}}}{ending}"


def split(name: str) -> tuple[str, str]:
    """`queues:mail:delayed`: mail, :delayed."""
    body = name.removeprefix("queues:")
    ending = next((each for each in BESIDE if body.endswith(each)), "")
    return body[: len(body) - len(ending)], ending


def ready_name(names: Names, name: str) -> str:
    """The ready list, as it is called there, of the queue that the key `name` is one of."""
    return names.real(f"{names.prefix}queues:{split(name[len(names.prefix) :])[0]}")


SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
PORT = 6379


class Seeds(NamedTuple):
    """A cluster's url, taken apart: some of its servers, as `host:port`, and how each of them is reached."""

    places: tuple[str, ...]
    before: str  # the scheme, user and password
    behind: str  # the options

    def url(self, place: str) -> str:
        return f"{self.before}{place}{self.behind}"


def seeds_of(url: str) -> Seeds:
    """Raises ConfigError naming what is wrong in it."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown kind of url '{scheme}:' of a cluster (known: {', '.join(SCHEMES)})")
    netloc, query, options = rest.partition("?")
    netloc, _, path = netloc.partition("/")
    if path.strip("/") not in ("", "0"):
        raise ConfigError(f"a cluster has database 0 only: take /{path} out of the url")
    user, at, hosts = netloc.rpartition("@")
    places = tuple(with_port(part.strip()) for part in hosts.split(",") if part.strip())
    if not places:
        raise ConfigError("the url of a cluster names no server (written redis+cluster://host:6379,host:6379)")
    found = Seeds(places, f"{SCHEMES[scheme]}://{user}{at}", f"{query}{options}")
    for place in places:
        if RedisUrl(found.url(place)).db:
            raise ConfigError("a cluster has database 0 only: take db= out of the url")
    return found


def with_port(place: str) -> str:
    try:
        parts = urlsplit(f"//{place}")
        return place if parts.port else f"{place.rstrip(':')}:{PORT}"
    except ValueError as error:
        raise ConfigError(f"'{place}' in the url of a cluster is not host:port ({error})") from None
