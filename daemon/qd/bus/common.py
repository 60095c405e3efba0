"""What all jobs of an app share: the pipeline around them, limits by name, and its connections."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from qd.bus.pipeline import Pipeline
from qd.errors import DeclarationError
from qd.units import span_in_code

if TYPE_CHECKING:
    from qd.connectors.manager import Connections


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` starts in any `per` seconds."""

    most: int
    per: float


def limit_of(name: str, most: int, per: float | timedelta) -> Limit:
    """Raises DeclarationError for figures that let nothing through."""
    seconds = seconds_of(f"the limit '{name}'", "per", per)
    if most < 1 or seconds <= 0:
        raise DeclarationError(f"the limit '{name}' of {most} per {seconds:g} s lets nothing run; give 1 or more")
    return Limit(most, seconds)


def seconds_of(whose: str, option: str, said: float | timedelta) -> float:
    """Raises DeclarationError for what is no length of time."""
    try:
        return span_in_code(said)
    except ValueError as error:
        raise DeclarationError(f"{whose}: {option}: {error}") from None


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
