"""What all jobs of an app share: the pipeline around them, limits by name, and the way to the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from qd.bus.pipeline import Pipeline
from qd.errors import DeclarationError
from qd.units import span

if TYPE_CHECKING:
    from qd.connectors.manager import Connections
    from qd.store.base import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` starts in any `per` seconds."""

    most: int
    per: float


def limit_of(name: str, most: int, per: float | timedelta) -> Limit:
    """Raises DeclarationError for figures that let nothing through."""
    seconds = span(per)
    if most < 1 or seconds <= 0:
        raise DeclarationError(f"the limit '{name}' of {most} per {seconds:g} s lets nothing run; give 1 or more")
    return Limit(most, seconds)


class Common:
    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.pipeline = Pipeline()
        self._limits: dict[str, Limit] = {}

    def declare(self, name: str, limit: Limit) -> None:
        other = self._limits.setdefault(name, limit)
        if other != limit:
            raise DeclarationError(f"the limit '{name}' is declared twice: {other.most} per {other.per:g} s before")

    def limit(self, name: str) -> Limit:
        if name not in self._limits:
            known = ", ".join(sorted(self._limits)) or "none"
            raise DeclarationError(f"no limit is called '{name}' (known: {known}): app.limit(\"{name}\", 100, per=60)")
        return self._limits[name]

    def ask(self, connection: str | None, seconds: float, ask: Callable[[Store], T]) -> T:
        """What the store of a connection says (None: the default one), which may take so long. Raises ConfigError,
        ConnectionLost, ServerRefused."""
        from qd.store.redis import store_of  # whose app has no such middleware loads no driver for it

        queue = self.connections.get(connection)
        with queue.within(seconds):
            return ask(store_of(queue))
