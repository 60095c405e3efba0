"""When an entry is due: its ticks, as moments of the clock that all hosts share. Pure: `at` is handed in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from zoneinfo import ZoneInfo


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
    """Each multiple of `seconds` since 1970-01-01 00:00 UTC: the same moments on all hosts, whenever they started."""

    seconds: float
    zone: str = "UTC"

    @property
    def text(self) -> str:
        return f"every {self.seconds:g}s"

    @property
    def mark(self) -> str:
        return f"e{self.seconds:g}"

    def next_after(self, at: float) -> float | None:
        found = (math.floor(at / self.seconds + 1e-9) + 1) * self.seconds
        return round(found, 3)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone."""

    expression: str
    zone: str = "UTC"

    @property
    def text(self) -> str:
        return self.expression

    @property
    def mark(self) -> str:
        return f"{self.expression} {self.zone}"

    def next_after(self, at: float) -> float | None:
        from cronsim import CronSim  # not on the way of `import qd`

        moment = datetime.fromtimestamp(at, ZoneInfo(self.zone))
        return next((found.timestamp() for found in CronSim(self.expression, moment)), None)
