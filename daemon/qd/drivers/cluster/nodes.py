"""The servers of a cluster, their slots, and the names of keys there.

    Nodes    slot -> server, read with CLUSTER SLOTS at first, after a redirection, and when a server is unreachable
    Node     a server and the connection to it; an unreachable one rests, so that the other servers' queues do not wait
    Names    name -> real name and slot

All keys of a queue are in one slot: `queues:NAME:delayed` is `queues:{NAME}:delayed` on a cluster, as in Laravel 13
(Queue/RedisQueue.php), unless NAME itself contains non-empty braces. The same holds for the keys of a batch, of errors and
their rest, and of the ticks. Every other key has a slot of its own.

redis-py's NodesManager is not used: it creates whole clients with pools and retries, holds a lock while it queries one
server after another, and does not let a server rest.
"""

from __future__ import annotations

import re
import time
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qd.drivers.keyspace.keys import ON_CLUSTER
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.url import host_port, seeds_of
from qd.errors import ConnectionLost, NoAnswer, OtherKind, ServerBusy, ServerRefused, Unreachable, WrongPassword
from qd.options.kinds import QUEUE_SUFFIXES

REST = 0.2  # seconds that an unreachable server rests, at least
RETRY = (0.1, 0.5)  # seconds that an attempt to reconnect may take, the first and the longest
TIMES = 10.0  # length of a rest, in multiples of the attempt before it
MAP_AGE = 0.1  # seconds between two reads of the map of slots


class Node:
    """A server, and the connection to it."""

    def __init__(self, place: str, connection: RedisConnection) -> None:
        self.place, self.connection = place, connection
        self._away_until, self._retry_time, self.why = 0.0, 0.0, ""

    def ready(self) -> RedisConnection:
        """The open connection. Raises as RedisConnection.connect; immediately while the server rests."""
        connection = self.connection
        if not connection.connected:
            began = time.monotonic()
            if began < self._away_until:
                raise Unreachable(self.why)
            try:
                if self._retry_time:
                    with connection.within(min(self._retry_time, connection.timeout)):
                        connection.connect()
                else:
                    connection.connect()
            except (ConnectionLost, OSError) as error:
                if not isinstance(error, WrongPassword):
                    self._rest(time.monotonic() - began, error)
                raise
            self._away_until = self._retry_time = 0.0
        return connection

    def note_error(self, error: Exception) -> None:
        """A call on a connection to this server failed. If the server did not answer in time, it rests."""
        if isinstance(error, NoAnswer):
            self.connection.close()
            self._rest(self.connection.timeout, error)

    def _rest(self, waited: float, why: object) -> None:
        self._retry_time = min(RETRY[1], 2 * self._retry_time) or RETRY[0]
        self._away_until = time.monotonic() + max(REST, TIMES * min(waited, self._retry_time))
        self.why = str(why)

    @property
    def resting(self) -> bool:
        return time.monotonic() < self._away_until


class Nodes:
    """make: opens a connection to a url."""

    def __init__(self, url: str, make: Callable[[str], RedisConnection]) -> None:
        self.seeds, self._make = seeds_of(url), make
        self._by_place: dict[str, Node] = {}
        self._starts: list[int] = []  # first slots of the ranges, sorted
        self._ranges: list[tuple[int, Node]] = []  # last slot and server of each range
        self._moved: dict[int, Node] = {}  # redirections since the map was read
        self.stale = True
        self._read_at = float("-inf")

    @property
    def place(self) -> str:
        return ",".join(self.seeds.places)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._by_place.values()))

    def primaries(self) -> list[Node]:
        """All servers with slots, each once. Raises ConnectionLost if no server answers."""
        self._refresh()
        return list(dict.fromkeys([node for _, node in self._ranges]))

    def of(self, slot: int) -> Node:
        """The server of a slot. Raises ConnectionLost if no server answers, ServerBusy if no server has the slot."""
        if self.stale:
            self._refresh()
        found = self._moved.get(slot)
        if found is not None:
            return found
        at = bisect_right(self._starts, slot) - 1
        if at >= 0 and slot <= self._ranges[at][0]:
            return self._ranges[at][1]
        self.stale = True
        raise ServerBusy(f"no server of the cluster at {self.place} has slot {slot} now")

    def at(self, place: str, sender: str = "") -> Node:
        """The server at `host:port`. sender: the address of the server that named it, which supplies a missing host."""
        host, _, port = place.rpartition(":")
        if not host:
            place = f"{sender.rpartition(':')[0]}:{port}"
        elif not host.startswith("["):
            place = host_port(host, port)
        if place not in self._by_place:
            self._by_place[place] = Node(place, self._make(self.seeds.url(place)))
        return self._by_place[place]

    def note_moved(self, slot: int, node: Node) -> None:
        """Note a redirection: the map is out of date."""
        self._moved[slot] = node
        self.stale = True

    def _refresh(self) -> None:
        """Read the map if it is stale. Keeps the old map if that fails."""
        at = time.monotonic()
        if not self.stale or (self._ranges and at - self._read_at < MAP_AGE):
            return
        self._read_at = at
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
                    way = f"write redis://{node.place} in the url"
                    raise OtherKind(f"the server at {node.place} is not part of a cluster: {way}") from None
                why = error
            except ConnectionLost as error:
                node.note_error(error)
                why = why or error
        raise why or ServerBusy(f"the cluster at {self.place} has no slots on any server yet")

    def _keep(self, source: Node, reply: Sequence[Any]) -> None:
        ranges = sorted((int(each[0]), int(each[1]), self._named(each[2], source)) for each in reply)
        self._starts = [first for first, _, _ in ranges]
        self._ranges = [(last, self.at(place)) for _, last, place in ranges]
        self._moved.clear()
        self.stale = False
        in_use = {node.place for _, node in self._ranges}
        for place in [place for place in self._by_place if place not in in_use]:
            if self._by_place[place] is not source:
                self._by_place.pop(place).connection.close()

    def _named(self, address: Sequence[Any], source: Node) -> str:
        """host:port of an address in the map. An empty host, or `?`, is the host of the server that sent the map."""
        host = address[0].decode() if isinstance(address[0], bytes) else ""
        if host in ("", "?"):
            host = source.place.rpartition(":")[0].strip("[]")
        return host_port(host, address[1])


SLOTS = 16384
CACHED = 10_000  # maximum number of cached names
_TAGGED = re.compile(r"\{[^}]+\}")
BORROWED = "{qd:at:"  # prefix of another connection's names, all in one slot: borrowed_prefix in drivers/connections.py
_GROUPS = (
    re.compile(r"(?P<kind>qd:batch:)(?P<name>[^:]+)(?P<ending>:\w+)?"),
    re.compile(r"(?P<kind>qd:(?:errors|rest):)(?P<name>.+)(?P<ending>)"),
    re.compile(r"(?P<kind>qd:)(?P<name>ticks)(?P<ending>:\w+)?"),
)
_REAL = re.compile(r"(queues:|qd:(?:(?:batch|errors|rest):)?)\{([^{}]+)\}(.*)", re.DOTALL)


def slot_of(key: str | bytes) -> int:
    """As servers compute it: CRC16 (XMODEM) of the first non-empty {...}, or of the whole key."""
    raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    start = raw.find(b"{")
    if start >= 0 and (end := raw.find(b"}", start + 1)) > start + 1:
        raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


class Names:
    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._known: dict[str, tuple[str, int]] = {}

    def placed(self, name: str) -> tuple[str, int]:
        """The real name and its slot. Raises ServerRefused for a queue that cannot be on a cluster."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= CACHED:
                self._known.clear()
            real = name
            if name.startswith(self.prefix) and not self.is_borrowed(name):
                real = self.prefix + tagged(name[len(self.prefix) :])
            found = self._known[name] = real, slot_of(real)
        return found

    def real(self, name: str) -> str:
        return self.placed(name)[0]

    def slot(self, name: str) -> int:
        return self.placed(name)[1]

    def is_borrowed(self, name: str) -> bool:
        """Whether the name belongs to another connection. Such names are not changed, and all are in one slot, so each
        script is one step."""
        return name.startswith(BORROWED, len(self.prefix))

    def original(self, real: str) -> str | None:
        """The name of the key called `real`. None: a key that exists on clusters only."""
        body = real.removeprefix(self.prefix)
        start = real[: len(real) - len(body)]
        found = _REAL.fullmatch(body)
        if found is None or self.is_borrowed(real):
            return None if body.startswith("queues:") and body.endswith(ON_CLUSTER) else real
        kind, name, ending = found.groups()
        if ending in ON_CLUSTER:
            return None
        its_own = kind == "queues:" and ending not in ("", *QUEUE_SUFFIXES)  # the queue's name itself has braces
        return real if its_own else f"{start}{kind}{name}{ending}"


def tagged(name: str) -> str:
    if name.startswith("queues:"):
        queue, ending = split(name)
        if queue.startswith("}"):
            raise ServerRefused(f"queue '{queue}' cannot be on a cluster: its name begins with a closing brace")
        return name if _TAGGED.search(queue) else f"queues:{{{queue}}}{ending}"
    for group in _GROUPS:
        if found := group.fullmatch(name):
            return f"{found['kind']}{{{found['name']}}}{found['ending'] or ''}"
    return name


def split(name: str) -> tuple[str, str]:
    """`queues:mail:delayed` -> mail, :delayed."""
    body = name.removeprefix("queues:")
    ending = next((each for each in QUEUE_SUFFIXES if body.endswith(each)), "")
    return body[: len(body) - len(ending)], ending


def ready_name(names: Names, name: str) -> str:
    """The real name of the ready list of the queue that the key `name` belongs to."""
    return names.real(f"{names.prefix}queues:{split(name[len(names.prefix) :])[0]}")
