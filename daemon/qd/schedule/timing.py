"""When an entry is due. `Cron` and `Every` give ticks as unix seconds, the same on all hosts. Pure: `at` is an argument.

    Cron -> Ticks (a time zone whose clocks change twice a year) -> Walls (wall clock times, by cronsim, without a zone)

Clock changes are handled as Debian's cron does. An expression with fixed times (`30 2 * * *`) runs once: times that the
change skips run when the new time begins, repeated times run the first time only. If minute or hour begins with `*`, the
expression is a beat and follows the clock: skipped times do not run, repeated times run again.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache

from cronsim import CronSim, CronSimError

from qd.options import kinds
from qd.options.kinds import KINDS, span_text

EPOCH = datetime(1970, 1, 1)
LONGEST = 3 * 3600  # seconds; a longer gap is not a clock change (Samoa had no 30 December 2011), nothing runs for it
NEVER = math.inf
LAST = 200_000_000_000  # unix seconds, in the year 8307; no tick comes later, since datetime ends in 9999
SHORTEST_MS = 10


class Ticks:
    """The times (unix seconds) at which an expression is due in a zone; shared by all entries with the same text.

    expression: as returned by `read`. Remembers the last result: not for several threads at once.
    """

    def __init__(self, expression: str, zone: str) -> None:
        self._walls = Walls(expression)
        self._zone = zone_of(zone)
        self._find = self._fixed if fixed(expression) else self._beat
        if zone == "UTC":
            self._find = self._plain
        self._from, self._next = 0.0, -NEVER

    def after(self, at: float) -> float:
        """The first tick after `at`; infinite if there is none."""
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
        """When the clock first shows `wall`; the end of the gap if it never does."""
        before, after = self._moments(wall)
        if before <= after:
            return before
        return self._end_of_gap(after, before) if before - after <= LONGEST else None

    def _end_of_gap(self, start: float, end: float) -> float:
        """When, after `start` and up to `end`, the clock is put forward."""
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
            return found  # the clock has not yet been put back
        return min(found, self._shown(wall - timedelta(seconds=back), second))

    def _shown(self, wall: datetime, second: int) -> float:
        """The first time after `second` at which the clock shows a matching time later than `wall`."""
        while (named := self._walls.after(wall)) is not None:
            first, again = self._moments(named)
            if first <= again and again > second:  # else it is in a gap, or in the past
                return first if first > second else again
            wall = named
        return NEVER

    def _wall(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self._zone)

    def _moments(self, wall: datetime) -> tuple[float, float]:
        """When the clock shows `wall`: two equal times; two different ones if it repeats; the later one first in a gap."""
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
TO_SUNDAY = re.compile(r"(?<!SUN)(?<!0)-SUN")  # in SAT-SUN Sunday must be 7, not 0
START = datetime(2000, 1, 1)


def read(expression: str) -> str:
    """The expression in its normal form: six fields, single blanks, capitals; "@daily" -> "0 0 0 * * *".

    Raises ValueError if it is malformed, or never comes.
    """
    fields = _long(expression.strip()).upper().split()
    if len(fields) not in (5, 6):
        way = f"not 5 ({ORDER}) or 6 (a second before them): every day at 7:00 is '0 7 * * *'"
        raise ValueError(f"cron expression {expression!r} has {len(fields)} fields, {way}")
    fields = ["0", *fields][-6:]
    fields[5] = TO_SUNDAY.sub("-7", fields[5])
    _check(expression, fields)
    return " ".join(fields)


def _long(text: str) -> str:
    """Replace an alias; return anything else unchanged."""
    if not text.startswith("@"):
        return text
    word = text.lower()
    if word == "@reboot":
        raise ValueError("cron expression '@reboot' has no time that all hosts share: do it when the program starts")
    if word not in ALIASES:
        near = kinds.did_you_mean(word, ALIASES)
        raise ValueError(f"unknown cron expression {text!r}{near} (known: {', '.join(ALIASES)})")
    return ALIASES[word]


def _check(expression: str, fields: list[str]) -> None:
    if _comes(fields):
        return _check_steps(expression, fields)
    for place, part in enumerate(fields):
        if not _is_valid(place, part):
            name, takes = FIELDS[place]
            bad = next((term for term in part.split(",") if not _is_valid(place, term)), part)
            way = f"({takes}; also *, lists 1,2, ranges 1-5, steps */5): every day at 7:00 is '0 7 * * *'"
            raise ValueError(f"cron expression {expression!r}: {bad!r} is not valid for the {name} {way}")
    way = f"month '{fields[4]}' and day of the week '{fields[5]}': change one of them"
    raise ValueError(f"cron expression {expression!r} never comes: no day fits day of the month '{fields[3]}', {way}")


def _check_steps(expression: str, fields: list[str]) -> None:
    """A step larger than its field is a mistake: */70 minutes means minute 0."""
    for (name, _), size, part in zip(FIELDS, SIZES, fields, strict=True):
        for step in re.findall(r"/([0-9]+)", part):
            if int(step) > size:
                way = f"a step of {step} is larger than the {name} ({size}): for any other interval write every"
                raise ValueError(f"cron expression {expression!r}: {way}")


def _comes(fields: list[str]) -> bool:
    """Whether the fields are valid and come within 50 years: a 29 February on a Sunday is 40 away at most."""
    try:
        return next(CronSim(" ".join(fields), START), None) is not None
    except CronSimError:
        return False


def _is_valid(place: int, field: str) -> bool:
    """Whether this field is valid on its own."""
    fields = ["*"] * 6
    fields[place] = field
    return _comes(fields)


def fixed(expression: str) -> bool:
    """Whether the expression (as returned by `read`) names fixed times; else it is a beat: its minute or hour begins with a
    star."""
    _, minute, hour, *_ = expression.split()
    return not minute.startswith("*") and not hour.startswith("*")


class Walls:
    """The wall clock times of an expression (as returned by `read`), in order."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._walk: Iterator[datetime] = iter(())
        self._from: datetime = datetime.max
        self._next: datetime | None = None

    def after(self, wall: datetime) -> datetime | None:
        """The first after `wall` (without a zone, whole seconds). None if there is none."""
        if self._next is not None and wall >= self._next:  # for consecutive ticks the expression is parsed once
            self._from, self._next = self._next, next(self._walk, None)
        if wall < self._from or (self._next is not None and wall >= self._next):
            self._walk = CronSim(self._expression, wall)
            self._from, self._next = wall, next(self._walk, None)
        return self._next


@dataclass(frozen=True, slots=True)
class Every:
    """Each multiple of `seconds` since 1970-01-01 00:00 UTC, the same times on all hosts.

    Whole milliseconds, at least 0.01 seconds. Raises ValueError.
    """

    seconds: float
    zone: str = "UTC"

    def __post_init__(self) -> None:
        ms = self.seconds * 1000 if math.isfinite(self.seconds) else 0.0
        if ms < SHORTEST_MS or abs(ms - round(ms)) > 1e-6:
            way = "use whole milliseconds, 0.01 or more"
            raise ValueError(f"every {self.seconds} seconds is not a valid interval: {way}")

    @property
    def text(self) -> str:
        return f"every {span_text(self.seconds)}"

    @property
    def mark(self) -> str:
        return f"e{self.seconds:g}"

    def next_after(self, at: float) -> float:
        """The first tick after `at` (unix seconds)."""
        step = round(self.seconds * 1000)
        number = math.floor(at * 1000) // step + 1
        while number * step / 1000 <= at:  # `at` is a tick, and its floating point value is a little less
            number += 1
        return number * step / 1000


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone. Raises ValueError."""

    expression: str
    zone: str = "UTC"
    _ticks: Ticks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise ValueError(f"{self.expression!r} is not a cron expression: write a string like '0 7 * * *'")
        object.__setattr__(self, "zone", KINDS["zone"](self.zone))
        object.__setattr__(self, "_ticks", _ticks(_read(self.expression), self.zone))

    @property
    def text(self) -> str:
        return self.expression

    @property
    def mark(self) -> str:
        return f"{_read(self.expression)} {self.zone}"

    def next_after(self, at: float) -> float | None:
        """The first tick after `at` (unix seconds). None if there is none."""
        found = self._ticks.after(at)
        return None if found == NEVER else found


_read, _ticks = cache(read), cache(Ticks)

# text: for display. zone: "UTC" if none matters. mark: changes when the ticks do; a scheduler that finds another mark in the
# store ignores ticks from before its own declaration. Ticks are whole unix seconds, or fractions for shorter intervals.
Timing = Every | Cron


def zone_of(name: str) -> tzinfo:
    """name: a zone as options.kinds returns it."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # slow to import; caches its zones

    return ZoneInfo(name)
