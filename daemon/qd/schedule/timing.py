"""When an entry is due: its ticks, as moments of the clock that all hosts share. Pure: `at` is handed in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Protocol

from qd.options.kinds import KINDS
from qd.units import span_text

if TYPE_CHECKING:
    from qd.schedule.clock import Ticks

SHORTEST_MS = 10


class Timing(Protocol):
    """Ticks are whole unix seconds, or fractions for entries that come more often than that."""

    @property
    def text(self) -> str:
        """As it is shown: the expression, or "every 10s"."""

    @property
    def zone(self) -> str:
        """The time zone it is reckoned in, "UTC" where none matters."""

    @property
    def mark(self) -> str:
        """A few letters that change when the ticks do: a scheduler that finds another mark in the store knows that what was
        due before its own declaration is not its own."""

    def next_after(self, at: float) -> float | None:
        """The first tick that is later than `at` (unix seconds). None: it never comes."""


@dataclass(frozen=True, slots=True)
class Every:
    """Each multiple of `seconds` since 1970-01-01 00:00 UTC: the same moments on all hosts, whenever they started.

    Whole milliseconds, 0.01 seconds or more. Raises ValueError.
    """

    seconds: float
    zone: str = "UTC"

    def __post_init__(self) -> None:
        ms = self.seconds * 1000 if math.isfinite(self.seconds) else 0.0
        if ms < SHORTEST_MS or abs(ms - round(ms)) > 1e-6:
            raise ValueError(f"every {self.seconds} seconds is no beat: write whole milliseconds, 0.01 or more")

    @property
    def text(self) -> str:
        return f"every {span_text(self.seconds)}"

    @property
    def mark(self) -> str:
        return f"e{self.seconds:g}"

    def next_after(self, at: float) -> float | None:
        step = round(self.seconds * 1000)
        number = math.floor(at * 1000) // step + 1
        while number * step / 1000 <= at:  # `at` is such a tick, and a hair below it once multiplied
            number += 1
        return number * step / 1000


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone, checked here (ValueError). What a change of the clock does: clock.py."""

    expression: str
    zone: str = "UTC"
    _ticks: Ticks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise ValueError(f"{self.expression!r} is not a cron expression: write a text like '0 7 * * *'")
        object.__setattr__(self, "zone", KINDS["zone"](self.zone))
        object.__setattr__(self, "_ticks", _shared(_read(self.expression), self.zone))

    @property
    def text(self) -> str:
        return self.expression

    @property
    def mark(self) -> str:
        return f"{_read(self.expression)} {self.zone}"

    def next_after(self, at: float) -> float | None:
        found = self._ticks.after(at)
        return None if found == math.inf else found


@cache
def _read(expression: str) -> str:
    from qd.schedule.cron import read  # not on the way of `import qd`

    return read(expression)


@cache
def _shared(expression: str, zone: str) -> Ticks:
    from qd.schedule.clock import Ticks

    return Ticks(expression, zone)
