"""Wall clocks to moments: what a cron expression means in a time zone whose clocks are changed twice a year.

As Debian's cron does it. An expression of moments (`30 2 * * *`) comes once: what the change leaves out comes as the
new time begins, what it repeats comes the first time only. A beat (its minute or hour begins with `*`) follows the hands
of the clock as they are: what is left out does not come, what is repeated comes again, so that it goes by elapsed time.

A cron expression, read and checked, and the moments on a wall clock that it names. Zones are clock.py's.

Read by cronsim, which is asked for wall clocks only: it never sees a time zone.

When an entry is due: its ticks, as moments of the clock that all hosts share. Pure: `at` is handed in.

Time zones by their names: those of the installed zone data, and UTC, which needs none.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Protocol

from cronsim import CronSim, CronSimError

from qd.options import kinds
from qd.options.kinds import KINDS, span_text

EPOCH = datetime(1970, 1, 1)
LONGEST = 3 * 3600  # seconds; a longer gap is no change of the clock: Samoa had no 30 December 2011, nothing ran for it
NEVER = math.inf
LAST = 200_000_000_000  # in the year 8307: nothing comes after it, for the calendar ends in 9999


class Ticks:
    """The moments (unix seconds) at which an expression is due in a zone. One for all entries that say the same.

    expression: as cron.read returns it. It remembers the last answer: not for several threads at once.
    """

    def __init__(self, expression: str, zone: str) -> None:
        self._walls = Walls(expression)
        self._zone = zone_of(zone)
        self._find = self._fixed if fixed(expression) else self._beat
        if zone == "UTC":
            self._find = self._plain
        self._from, self._next = 0.0, -NEVER

    def after(self, at: float) -> float:
        """The first that is later than `at`; infinite when there is none."""
        if not self._from <= at < self._next:
            self._from, self._next = at, self._find(math.floor(at)) if at < LAST else NEVER
        return self._next

    def _plain(self, second: int) -> float:
        wall = self._walls.after(EPOCH + timedelta(seconds=second))
        return NEVER if wall is None else (wall - EPOCH).total_seconds()

    def _fixed(self, second: int) -> float:
        wall = self._walls.after(self._wall(second).replace(tzinfo=None, fold=0))
        while wall is not None:
            tick = self._once(wall)
            if tick is not None and tick > second:
                return tick
            wall = self._walls.after(wall)
        return NEVER

    def _once(self, wall: datetime) -> float | None:
        """The moment at which the clock shows `wall` for the first time; the end of the gap if it never does."""
        before, after = self._moments(wall)
        if before <= after:
            return before
        return self._end_of_gap(after, before) if before - after <= LONGEST else None

    def _end_of_gap(self, start: float, end: float) -> float:
        """The moment after `start`, up to `end`, at which the clock is put forward."""
        span = range(int(start), int(end))
        new = self._wall(span.stop).utcoffset()
        return float(span.start + bisect_left(span, True, key=lambda second: self._wall(second).utcoffset() == new))

    def _beat(self, second: int) -> float:
        here = self._wall(second)
        wall = here.replace(tzinfo=None, fold=0)
        found = self._shown(wall, second)
        first, again = self._moments(wall)
        back = again - first
        if back <= 0 or here.fold:
            return found
        if found <= second + back and self._wall(int(found)).utcoffset() == here.utcoffset():
            return found  # the clock has not been put back yet
        return min(found, self._shown(wall - timedelta(seconds=back), second))

    def _shown(self, wall: datetime, second: int) -> float:
        """The first moment after `second` at which the clock shows what is named, of all that is later than `wall`."""
        while (named := self._walls.after(wall)) is not None:
            first, again = self._moments(named)
            if first <= again and again > second:  # else it is in a gap, or over
                return first if first > second else again
            wall = named
        return NEVER

    def _wall(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self._zone)

    def _moments(self, wall: datetime) -> tuple[float, float]:
        """When the clock shows `wall`: equal, two where it is shown twice, the later one first where it never is."""
        first = wall.replace(tzinfo=self._zone)
        return first.timestamp(), first.replace(fold=1).timestamp()


ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = (
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31, L for the last day, LW for the last weekday"),
    ("month", "1-12 or JAN-DEC"),
    ("day of the week", "0-7 or SUN-SAT, 0 and 7 are Sunday, 5L is the last Friday, 5#2 the second"),
)
SIZES = (60, 60, 24, 31, 12, 7)
ORDER = "minute, hour, day of the month, month, day of the week"
TO_SUNDAY = re.compile(r"(?<!SUN)(?<!0)-SUN")  # SAT-SUN: Sunday is 0 where it is named, and would be before Saturday
START = datetime(2000, 1, 1)


def read(expression: str) -> str:
    """The expression in one way of writing it: six fields, one blank between them, capitals; "@daily" -> "0 0 0 * * *".

    Raises ValueError: it is none, or it never comes.
    """
    fields = _long(expression.strip()).upper().split()
    if len(fields) not in (5, 6):
        raise ValueError(
            f"cron expression {expression!r} has {len(fields)} fields, not 5 ({ORDER}) "
            "or 6 (a second before them): every day at 7:00 is '0 7 * * *'"
        )
    fields = ["0", *fields][-6:]
    fields[5] = TO_SUNDAY.sub("-7", fields[5])
    _check(expression, fields)
    return " ".join(fields)


def _long(text: str) -> str:
    """What an alias stands for; anything else as it is."""
    if not text.startswith("@"):
        return text
    word = text.lower()
    if word == "@reboot":
        raise ValueError(
            "cron expression '@reboot' names no moment that all hosts share: do it when the program starts"
        )
    if word not in ALIASES:
        near = kinds.did_you_mean(word, ALIASES)
        raise ValueError(f"unknown cron expression {text!r}{near} (known: {', '.join(ALIASES)})")
    return ALIASES[word]


def _check(expression: str, fields: list[str]) -> None:
    if _comes(fields):
        return _check_steps(expression, fields)
    for place, part in enumerate(fields):
        if not _stands(place, part):
            name, takes = FIELDS[place]
            bad = next((term for term in part.split(",") if not _stands(place, term)), part)
            raise ValueError(
                f"cron expression {expression!r}: {bad!r} cannot stand for the {name} ({takes}; "
                "also *, lists 1,2, ranges 1-5, steps */5): every day at 7:00 is '0 7 * * *'"
            )
    raise ValueError(
        f"cron expression {expression!r} never comes: no day fits day of the month '{fields[3]}', "
        f"month '{fields[4]}' and day of the week '{fields[5]}': change one of them"
    )


def _check_steps(expression: str, fields: list[str]) -> None:
    """A step that is larger than its field is somebody's mistake: */70 minutes is minute 0."""
    for (name, _), size, part in zip(FIELDS, SIZES, fields, strict=True):
        for step in re.findall(r"/([0-9]+)", part):
            if int(step) > size:
                raise ValueError(
                    f"cron expression {expression!r}: a step of {step} is larger than the {name} ({size}): "
                    "for a beat of any length write every"
                )


def _comes(fields: list[str]) -> bool:
    """Whether it is one, and names a day of the next 50 years: 29 February on a Sunday is 40 away at most."""
    try:
        return next(CronSim(" ".join(fields), START), None) is not None
    except CronSimError:
        return False


def _stands(place: int, field: str) -> bool:
    """Whether this is a field, whatever the others are."""
    fields = ["*"] * 6
    fields[place] = field
    return _comes(fields)


def fixed(expression: str) -> bool:
    """Whether it names moments of the day (true), or a beat: its minute or its hour begins with a star.
    expression: as `read` returns it."""
    _, minute, hour, *_ = expression.split()
    return not minute.startswith("*") and not hour.startswith("*")


class Walls:
    """The wall-clock moments that an expression names, in order. expression: as `read` returns it."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._walk: Iterator[datetime] = iter(())
        self._from: datetime = datetime.max
        self._next: datetime | None = None

    def after(self, wall: datetime) -> datetime | None:
        """The first that is later than `wall` (no zone, whole seconds). None: it never comes again."""
        if self._next is not None and wall >= self._next:
            self._step()  # asked for one tick after the other, the expression is read once
        if wall < self._from or (self._next is not None and wall >= self._next):
            self._seek(wall)
        return self._next

    def _seek(self, wall: datetime) -> None:
        self._walk = CronSim(self._expression, wall)
        self._from, self._next = wall, next(self._walk, None)

    def _step(self) -> None:
        assert self._next is not None
        self._from, self._next = self._next, next(self._walk, None)


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

    return read(expression)


@cache
def _shared(expression: str, zone: str) -> Ticks:

    return Ticks(expression, zone)


def zone_of(name: str) -> tzinfo:
    """name: as options.kinds reads a zone."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # not on the way of `import qd`; it keeps those that it has read

    return ZoneInfo(name)
