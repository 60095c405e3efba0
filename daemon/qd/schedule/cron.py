"""A cron expression, read and checked, and the moments on a wall clock that it names. Zones are clock.py's.

Read by cronsim, which is asked for wall clocks only: it never sees a time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from cronsim import CronSim, CronSimError

from qd import units

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
        near = units.did_you_mean(word, ALIASES)
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
