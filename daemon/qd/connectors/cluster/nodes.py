"""Which server of a cluster has which slot: asked of any of them at first, after a redirection, and when one is away.

What stands on the others is not to wait for a server that is away: it is looked at again after a rest, for a moment only,
and the rest is ten times as long as that.

Each server is reached by a connection of redis-py (redis/client.py). Its NodesManager is not used: it makes whole clients
with pools and retries, holds a lock while it asks one server after another, and knows no server that rests.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qd.connectors.cluster.seeds import seeds_of
from qd.connectors.redis.wire import Wire
from qd.errors import (
    ConnectionLost,
    NoAnswer,
    OtherKind,
    ServerBusy,
    ServerRefused,
    Unreachable,
    WrongPassword,
)

REST = 0.2  # seconds that a server that is away is left alone, at least
LOOK = (0.1, 0.5)  # seconds that a look at it lasts, the first one and the longest
TIMES = 10.0  # rests as long as a look has lasted
ASKED = 0.1  # seconds between two looks at the whole map


class Node:
    """A server, and the connection to it."""

    def __init__(self, place: str, wire: Wire) -> None:
        self.place, self.wire = place, wire
        self._away_until, self._look, self.why = 0.0, 0.0, ""

    def ready(self) -> Wire:
        """Its connection, made where there is none. Raises as Wire.connect; at once where it was away just now."""
        wire = self.wire
        if not wire.connected:
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
        return wire

    def _connect(self) -> None:
        if not self._look:
            self.wire.connect()
            return
        with self.wire.within(min(self._look, self.wire.timeout)):
            self.wire.connect()

    def broke(self, error: Exception) -> None:
        """A call on one of the connections to it has said so. One that was waited for in vain is looked at after a rest."""
        if isinstance(error, NoAnswer):
            self.wire.close()
            self._rests(self.wire.timeout, error)

    def _rests(self, waited: float, why: object) -> None:
        self._look = min(LOOK[1], 2 * self._look) or LOOK[0]
        self._away_until = time.monotonic() + max(REST, TIMES * min(waited, self._look))
        self.why = str(why)

    @property
    def resting(self) -> bool:
        return time.monotonic() < self._away_until


class Nodes:
    """`make` opens a connection to a url."""

    def __init__(self, url: str, make: Callable[[str], Wire]) -> None:
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
        for node in sorted(dict.fromkeys(known), key=lambda node: (node.resting, not node.wire.connected)):
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
                self._by_place.pop(place).wire.close()

    def _named(self, told: Sequence[Any], asked: Node) -> str:
        """host:port of a server as it is told; no host, or `?`, is the one that was asked."""
        host = told[0].decode() if isinstance(told[0], bytes) else ""
        if host in ("", "?"):
            host = asked.place.rpartition(":")[0].strip("[]")
        return f"[{host}]:{told[1]}" if ":" in host else f"{host}:{told[1]}"
