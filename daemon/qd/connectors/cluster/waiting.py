"""Waiting for a token in several slots: a BLPOP for each, on connections of their own, as many as slots. Once one of them
has come, or the descriptor is readable, the others are ended: by CLIENT UNBLOCK, or where that is refused by hanging up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from qd.connectors.cluster.client import ClusterClient
from qd.connectors.cluster.nodes import Node
from qd.connectors.redis.speech import packed
from qd.connectors.redis.wire import Wire
from qd.errors import ConnectionLost, ServerRefused
from qd.process.descriptors import ready_of

AWAY = 1.0  # seconds that the wait lasts at most while a server is away


class Ear:
    """A connection that waits on lists of one slot. number: its id on the server, 0 where that is not told."""

    def __init__(self, node: Node, wire: Wire) -> None:
        self.node, self.wire, self.number = node, wire, 0

    def listen(self, names: Sequence[str], seconds: float) -> None:
        """Raises ConnectionLost, ServerRefused."""
        self.node.ready()  # or it rests, and is not waited for
        try:
            if not self.wire.connected:
                self.wire.connect()
                (told,) = self.wire.call_many([("CLIENT", "ID")])
                self.number = told if isinstance(told, int) else 0
            self.wire.send(packed(("BLPOP", *names, max(0.001, round(seconds, 3)))))
        except ConnectionLost as error:
            self.node.broke(error)
            raise

    def end(self) -> Any:
        """What it hears when nobody waits any more. None: nothing."""
        try:
            if self.wire.readable(0, -1):
                return self.wire.receive()
            if self.number:
                self.node.ready().call("CLIENT", "UNBLOCK", self.number)
                return self.wire.receive()
        except (ConnectionLost, ServerRefused) as error:
            self.node.broke(error)
        return self.wire.leave()


class Ears:
    def __init__(self, space: ClusterClient) -> None:
        self.space = space
        self._by_slot: dict[int, Ear] = {}

    def wait(self, names: Sequence[str], seconds: float, wake: int) -> None:
        """Raises ConnectionLost when none of the servers can be asked."""
        groups: dict[int, list[str]] = {}
        for real, slot in map(self.space.names.placed, names):
            groups.setdefault(slot, []).append(real)
        ears, why = dict[int, Ear](), None
        for slot, these in groups.items():
            try:
                ear = self._ear(slot)
                ear.listen(these, seconds)
                ears[slot] = ear
            except (ConnectionLost, ServerRefused) as error:
                why, self.space.nodes.stale = error, True
        if not ears:
            raise why or ConnectionLost(f"the {self.space.place} is away")
        limit = seconds + self.space.timeout if why is None else min(seconds, AWAY)
        tokens = self._heard(list(ears.values()), limit, wake)
        left = tokens if ready_of([wake], 0) else tokens[1:]
        for name in left:
            self.space.sent(self.space.plain("RPUSH", name.decode(), "1"))

    def _heard(self, ears: Sequence[Ear], seconds: float, wake: int) -> list[bytes]:
        """The lists that a token came from."""
        until, came = time.monotonic() + seconds, False
        while not came and (left := until - time.monotonic()) > 0:
            fds = ready_of([*[ear.wire.fileno() for ear in ears], wake], left)
            came = not fds or wake in fds or any(ear.wire.readable(0, -1) for ear in ears if ear.wire.fileno() in fds)
        tokens = list[bytes]()
        for reply in [ear.end() for ear in ears]:
            if isinstance(reply, list):
                tokens.append(reply[0])
        return tokens

    def _ear(self, slot: int) -> Ear:
        """Connected where it is not. Another one has the slot by now: it gets a connection of its own."""
        node = self.space.nodes.of(slot)
        ear = self._by_slot.get(slot)
        if ear is None or ear.node is not node:
            if ear is not None:
                ear.wire.close()
            ear = self._by_slot[slot] = Ear(node, self.space.opened(node.place))
        ear.wire.patience(self.space.connect_timeout, self.space.timeout)
        return ear

    def close(self) -> None:
        for ear in self._by_slot.values():
            ear.wire.close()
