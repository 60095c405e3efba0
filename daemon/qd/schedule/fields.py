"""The six fields of an entry's cron expression, each of which a frequency may write: so that frequencies compose.

days.py and frequencies.py are the words that write them; scheduled.py reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Never, Self

from qd.errors import DeclarationError

FIELDS = ("second", "minute", "hour", "day", "month", "weekday")
Number = int | str  # 5 or "5": Laravel's own take texts
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{1,2}))?")
_DIGITS = re.compile(r"[0-9]{1,2}")


class Fields:
    """What is written of each field; nothing yet: an entry without a frequency. origin: file and line of the entry."""

    def __init__(self, origin: tuple[str, int]) -> None:
        self._origin = origin
        self._place = ""  # "[schedule.entries.NAME] " of the file
        self._written: dict[str, str] = {}
        self._seconds: float | None = None  # every(...)

    def _write(self, **fields: str | int) -> Self:
        if self._seconds is not None:
            self._refuse(
                "every(...) counts seconds and has no days and hours: leave it out, or ask for them with "
                "between() and when()"
            )
        self._written.update({name: str(value) for name, value in fields.items()})
        return self

    @property
    def _expression(self) -> str:
        """Five fields, six where seconds are written."""
        first = FIELDS[0 if "second" in self._written else 1 :]
        return " ".join([self._written.get(name, "*") for name in first])

    @property
    def _says_when(self) -> bool:
        """Whether more is written than days: of those alone nobody knows the hour."""
        return any(name in self._written for name in ("second", "minute", "hour"))

    def _refuse(self, fact: str) -> Never:
        raise wrong(self._origin, self._place + fact)

    # --- what the words are given

    def _number(self, value: object, low: int, high: int, what: str) -> int:
        number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value.strip()) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            self._refuse(f"{value!r} is no {what} ({low} to {high})")
        return number

    def _numbers(self, value: Number | Sequence[Number], low: int, high: int, what: str) -> str:
        """One of them, or several: [0, 30], "0,30"."""
        given: Sequence[Number] = [value] if isinstance(value, int | str) else value
        several = [part for each in given for part in (each.split(",") if isinstance(each, str) else [each])]
        if not several:
            self._refuse(f"an empty list: give at least one {what} ({low} to {high})")
        return ",".join([str(self._number(each, low, high, what)) for each in several])

    def _time(self, value: object) -> tuple[int, int]:
        """(hour, minute) of "13:00", or of the hour alone, "13"."""
        found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
        hour, minute = (int(found[1]), int(found[2] or 0)) if found else (24, 0)
        if hour > 23 or minute > 59:
            self._refuse(f"{value!r} is no time of day (written '13:00')")
        return hour, minute

    def _write_time(self, value: object) -> Self:
        hour, minute = self._time(value)
        return self._write(hour=hour, minute=minute)


def wrong(origin: tuple[str, int], fact: str) -> DeclarationError:
    """The error of an entry: where it is declared, and what is wrong."""
    return DeclarationError(f"the entry of the schedule at {shown(origin)} is wrong: {fact}")


def shown(origin: tuple[str, int]) -> str:
    """`shop/jobs.py:12`; the file alone where no line is known."""
    file, line = origin
    return f"{file}:{line}" if line else file
