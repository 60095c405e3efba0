"""What is known while a node of a cluster is away: `status` and `health` show what the other nodes have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from qd.errors import ConnectionLost

T = TypeVar("T")
U = TypeVar("U")
MASTERS = "masters and their workers"


class Partly:
    """away: nodes that do not answer, by their places, each with what is wrong. unknown: what they have, in words."""

    def __init__(self) -> None:
        self.away = dict[str, str]()
        self.unknown = list[str]()

    def read(self, space: Any, what: str, otherwise: U, read: Callable[..., T], *args: Any) -> T | U:
        """`otherwise` if it is on a node that is away. what: added to `unknown` then; "": nothing is missed. Raises
        ConnectionLost for a server that is no cluster, and if no node answers."""
        try:
            return read(*args)
        except ConnectionLost:
            if not self._notes(space):
                raise
            if what:
                self.unknown.append(what)
            return otherwise

    def found(self, space: Any, find: Callable[[], list[str]]) -> list[str]:
        """Names that are looked for on all nodes: those of the nodes that answer."""
        if hasattr(space, "skips"):
            space.skips = True
        names = find()
        if self._notes(space):
            self.unknown.append("other queues there")
        return names

    def _notes(self, space: Any) -> dict[str, str]:
        nodes: dict[str, str] = space.away() if hasattr(space, "skips") else {}
        self.away.update(nodes)
        return nodes
