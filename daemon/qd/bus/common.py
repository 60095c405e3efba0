"""What all jobs of an app share: the pipeline around them, limits by name, and its connections."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from qd.bus.pipeline import Pipeline
from qd.errors import DeclarationError
from qd.units import span_in_code

if TYPE_CHECKING:
    from qd.connectors.connections import Connections


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` starts in any `per` seconds."""

    most: int
    per: float


def limit_of(name: str, most: int, per: float | timedelta) -> Limit:
    """Raises DeclarationError for figures that let nothing through."""
    seconds = seconds_of(f"the limit '{name}'", "per", per)
    if not isinstance(most, int) or isinstance(most, bool):
        raise DeclarationError(
            f"the limit '{name}' of {most!r} per {seconds:g} s is no whole number of starts; give 1 or more"
        )
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

    def figures(self, name: str, most: int | None, per: float | timedelta | None) -> Limit:
        """The given ones, which must be the declared ones where there are such; without any the declared ones."""
        if most is None and per is None:
            return self.limit(name)
        if most is None or per is None:
            raise DeclarationError(f"the limit '{name}' has half of its figures: give both, 100, per=60")
        limit = limit_of(name, most, per)
        if self._limits.get(name, limit) != limit:
            other = self._limits[name]
            raise DeclarationError(f"the limit '{name}' is declared already, with {other.most} per {other.per:g} s")
        return limit

    def limit(self, name: str) -> Limit:
        if name not in self._limits:
            known = ", ".join(sorted(self._limits)) or "none"
            raise DeclarationError(f"no limit is called '{name}' (known: {known}): app.limit(\"{name}\", 100, per=60)")
        return self._limits[name]
