"""Packed commands to the servers of a cluster, each to the one that has its slot: written to all of them before any reply is
read, and sent again where a server has redirected them, for then it has run nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.connectors.cluster.nodes import Node, Nodes
from qd.connectors.keyspace.base import Script
from qd.connectors.redis.speech import is_unknown, packed, with_refusals, with_text
from qd.errors import ConnectionLost, ServerBusy, ServerRefused

ROUNDS = 16  # redirections that one call follows
PATIENCE = 1.0  # seconds that a slot on its way is waited for, at most
STEP = (0.001, 0.05)  # seconds between two tries then
TORN = "attempted to access a non local key"  # a step met a key that had just gone to another server

Sent = dict[int, tuple[int, tuple[bytes, ...]]]
"""By their places: slots, and the commands as they are sent, with ASKING before one that is asked of another server."""


class Item(NamedTuple):
    """A packed command and the slot it is for. script: sent by its hash."""

    slot: int
    command: bytes
    script: Script | None = None


class Exchange:
    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def run(self, items: Sequence[Item], timeout: float) -> list[Any]:
        """All replies; what was refused, and what a server that is away was asked, as exceptions in their places."""
        replies: list[Any] = [None] * len(items)
        left: Sent = {place: (item.slot, (item.command,)) for place, item in enumerate(items)}
        asked = dict[int, Node]()
        until, pause = time.monotonic() + min(PATIENCE, timeout), STEP[0]
        for _ in range(ROUNDS):
            self._round(left, asked, replies)
            again, waits = self._again(items, replies, left, asked)
            if not again or time.monotonic() > until:
                break
            if waits:
                time.sleep(pause)
                pause = min(STEP[1], pause * 2)
            left = again
        return [self._told(items[place], reply) for place, reply in enumerate(replies)]

    def _told(self, item: Item, reply: Any) -> Any:
        if isinstance(reply, ServerRefused) and is_redirection(reply):
            return ServerBusy(
                f"slot {item.slot} of the cluster at {self.nodes.place} is on its way to another server: {reply}"
            )
        return with_refusals(reply)

    def _round(self, left: Sent, asked: dict[int, Node], replies: list[Any]) -> None:
        """Write to all servers, then read from all of them. asked: who was asked for each, and is to be asked where it
        stands there already (ASK)."""
        groups: dict[Node, list[int]] = {}
        for place, (slot, commands) in left.items():
            try:
                if len(commands) == 1:
                    asked[place] = self.nodes.of(slot)
                groups.setdefault(asked[place], []).append(place)
            except (ConnectionLost, ServerRefused) as error:
                replies[place] = error
        written = []
        for node, places in groups.items():
            try:
                node.ready().write_all([part for place in places for part in left[place][1]])
                written.append(node)
            except (ConnectionLost, ServerRefused) as error:
                self._broke(node, places, replies, error)
        for node in written:
            try:
                for place in groups[node]:
                    parts = left[place][1]
                    replies[place] = node.wire.read_all(len(parts))[-1]
            except ConnectionLost as error:
                at = groups[node].index(place)
                self._broke(node, groups[node][at:], replies, error)

    def _broke(self, node: Node, places: Sequence[int], replies: list[Any], error: Exception) -> None:
        self.nodes.stale = True
        node.broke(error)
        for place in places:
            replies[place] = error

    def _again(
        self,
        items: Sequence[Item],
        replies: list[Any],
        sent: Sent,
        asked: dict[int, Node],
    ) -> tuple[Sent, bool]:
        """What none of the servers has run is sent again; and whether after a while."""
        again: Sent = {}
        waits = False
        for place, (slot, commands) in sent.items():
            reply, item = replies[place], items[place]
            if not isinstance(reply, ServerRefused | ServerBusy):
                continue
            if is_unknown(reply) and item.script is not None:
                again[place] = slot, (*commands[:-1], with_text(item.script, commands[-1]))
            elif str(reply).startswith("MOVED "):
                self.nodes.moved(slot, self.nodes.at(str(reply).split(" ")[2], asked[place].place))
                again[place] = slot, commands[-1:]
            elif str(reply).startswith("ASK "):
                asked[place] = self.nodes.at(str(reply).split(" ")[2], asked[place].place)
                again[place] = slot, (packed(("ASKING",)), commands[-1])
            elif "TRYAGAIN" in str(reply):
                again[place], waits = (slot, commands[-1:]), True
            elif isinstance(reply, ServerBusy):
                self.nodes.stale = True  # a replica by now, or out of touch with the others
            elif TORN in str(reply):
                replies[place] = ConnectionLost(f"a slot went to another server in the middle of a step: {reply}")
        return again, waits


def is_redirection(error: Exception) -> bool:
    text = str(error)
    return text.startswith(("MOVED ", "ASK ")) or "TRYAGAIN" in text or TORN in text
