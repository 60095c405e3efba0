"""How often and on which days an entry is due: cron(), every(), and the methods of Laravel's scheduler in Python spelling.

Each method writes some of the six fields of the entry's cron expression and leaves the others, so that methods combine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Never, Self, TypeVar

from qd.errors import DeclarationError
from qd.options.kinds import did_you_mean, span_in_code
from qd.schedule.timing import Every

S = TypeVar("S", bound="Fields")
FIELDS = ("second", "minute", "hour", "day", "month", "weekday")
Number = int | str  # 5 or "5"; Laravel accepts strings, too
Weekday = int | str  # 0 and 7: Sunday, 1: Monday ...; or its name, "monday", "mon"
WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{1,2}))?")
_DIGITS = re.compile(r"[0-9]{1,2}")


class Fields:
    """The fields written so far; none in the beginning. origin: file and line of the entry."""

    def __init__(self, origin: tuple[str, int]) -> None:
        self._origin = origin
        self._place = ""  # "[schedule.entries.NAME] " if it is from the file
        self._written: dict[str, str] = {}
        self._seconds: float | None = None  # every(...)

    def _write(self, **fields: str | int) -> Self:
        if self._seconds is not None:
            self._refuse(
                "every(...) counts seconds and has no days and hours: remove it, or set them with between() and when()"
            )
        self._written.update({name: str(value) for name, value in fields.items()})
        return self

    @property
    def _expression(self) -> str:
        """Five fields, or six if seconds are written."""
        first = FIELDS[0 if "second" in self._written else 1 :]
        return " ".join([self._written.get(name, "*") for name in first])

    @property
    def _has_time(self) -> bool:
        """Whether a time of the day is written, not just days."""
        return any(name in self._written for name in ("second", "minute", "hour"))

    def _refuse(self, fact: str) -> Never:
        raise wrong(self._origin, self._place + fact)

    # --- arguments

    def _number(self, value: object, low: int, high: int, what: str) -> int:
        number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value.strip()) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            self._refuse(f"{value!r} is not a valid {what} ({low} to {high})")
        return number

    def _numbers(self, value: Number | Sequence[Number], low: int, high: int, what: str) -> str:
        """One number or several: [0, 30], "0,30"."""
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
            self._refuse(f"{value!r} is not a time of day (write '13:00')")
        return hour, minute

    def _write_time(self, value: object) -> Self:
        hour, minute = self._time(value)
        return self._write(hour=hour, minute=minute)


def wrong(origin: tuple[str, int], fact: str) -> DeclarationError:
    """The error of an entry: its origin, and what is wrong."""
    return DeclarationError(f"the entry of the schedule at {shown(origin)} is wrong: {fact}")


def shown(origin: tuple[str, int]) -> str:
    """`shop/jobs.py:12`; only the file if the line is unknown."""
    file, line = origin
    return f"{file}:{line}" if line else file


def writes(doc: str = "", **fields: str | int) -> Callable[[S], S]:
    """A method without arguments that writes these fields."""

    def method(self: S) -> S:
        return self._write(**fields)

    method.__doc__ = doc or None
    return method


class Days(Fields):
    """Methods for days."""

    # --- days of the week; they need a time as well

    def days(self, *days: Weekday | Sequence[Weekday]) -> Self:
        """On these days of the week: 0 and 7 are Sunday, 1 is Monday; or by name, "monday", "mon". A string may hold more:
        "1-5", "mon,wed"."""
        several = [part for each in flat(days) for part in (each.split(",") if isinstance(each, str) else [each])]
        if not several:
            self._refuse("days() needs a day (0 to 7, or 'monday')")
        return self._write(weekday=",".join([self._days(each) for each in several]))

    weekdays = writes("Monday to Friday.", weekday="1-5")
    weekends = writes("Saturday and Sunday.", weekday="6,0")
    mondays = writes(weekday=1)
    tuesdays = writes(weekday=2)
    wednesdays = writes(weekday=3)
    thursdays = writes(weekday=4)
    fridays = writes(weekday=5)
    saturdays = writes(weekday=6)
    sundays = writes(weekday=0)

    # --- weeks, months, years; at midnight unless a time is given

    weekly = writes("Sundays at 0:00.", minute=0, hour=0, weekday=0)

    def weekly_on(self, day: Weekday | Sequence[Weekday], time: str = "0:00") -> Self:
        """On this day, or these days, of the week."""
        return self._write_time(time).days(day)

    monthly = writes("On the 1st at 0:00.", minute=0, hour=0, day=1)

    def monthly_on(self, day: Number = 1, time: str = "0:00") -> Self:
        """On this day of each month, if the month has it."""
        return self._write_time(time)._write(day=self._day(day))

    def twice_monthly(self, first: Number = 1, second: Number = 16, time: str = "0:00") -> Self:
        """On two days of each month."""
        return self.days_of_month(first, second)._write_time(time)

    def last_day_of_month(self, time: str = "0:00") -> Self:
        """On the last day of each month."""
        return self._write_time(time)._write(day="L")

    def days_of_month(self, *days: Number | Sequence[Number]) -> Self:
        """On these days of each month, if the month has them, at 0:00; `.days_of_month(1, 15).at("13:00")`."""
        return self._write(minute=0, hour=0, day=self._numbers(flat(days), 1, 31, "day of a month"))

    quarterly = writes(
        "On the 1st of January, April, July and October at 0:00.", minute=0, hour=0, day=1, month="1-12/3"
    )

    def quarterly_on(self, day: Number = 1, time: str = "0:00") -> Self:
        """On this day of January, April, July and October."""
        return self._write_time(time)._write(day=self._day(day), month="1-12/3")

    yearly = writes("On the 1st of January at 0:00.", minute=0, hour=0, day=1, month=1)

    def yearly_on(self, month: Number = 1, day: Number = 1, time: str = "0:00") -> Self:
        """On this day of each year."""
        return self._write_time(time)._write(day=self._day(day), month=self._number(month, 1, 12, "month"))

    def _day(self, value: object) -> int:
        return self._number(value, 1, 31, "day of a month")

    def _days(self, value: object) -> str:
        """One day, or a range: "1-5"."""
        first, to, last = value.partition("-") if isinstance(value, str) else (value, "", "")
        if not to:
            return str(self._weekday(first))
        begin, end = self._weekday(first), self._weekday(last)
        if begin >= end:
            self._refuse(f"{value!r} is not a range of days of the week (write '1-5')")
        return f"{begin}-{end}"

    def _weekday(self, value: object) -> int:
        if not isinstance(value, str) or value.strip().isdecimal():
            return self._number(value, 0, 7, "day of the week")
        word = value.strip().lower()
        found = [number for number, name in enumerate(WEEKDAYS) if word in (name, name[:3])]
        if not found:
            self._refuse(f"{value!r} is not a day of the week{did_you_mean(word, WEEKDAYS)}")
        return found[0]


def flat(given: Sequence[object]) -> list[Any]:
    """(1, [2, 3]) -> [1, 2, 3]: days may be given one by one or as a list."""
    return [one for each in given for one in (each if isinstance(each, list | tuple | range) else [each])]


class Frequencies(Days):
    """Methods for times."""

    def cron(self, expression: str) -> Self:
        """A crontab expression: five fields, or six with seconds first; names, ranges, L, #, @daily."""
        from qd.schedule.timing import read  # cronsim is not imported by `import qd`

        try:
            second, *fields = read(expression).split()
        except ValueError as error:
            self._refuse(str(error))
        fields = fields if len(expression.split()) < 6 else [second, *fields]
        self._written.clear()
        return self._write(**dict(zip(FIELDS[-len(fields) :], fields, strict=True)))

    def every(self, span: float | timedelta = 0, *, seconds: float = 0, minutes: float = 0, hours: float = 0) -> Self:
        """At multiples of this interval since 1970-01-01 0:00 UTC, at the same times on all hosts. span: seconds, or a
        timedelta."""
        try:
            parts = [span_in_code(each) for each in (span, seconds, minutes, hours)]
            found = Every(sum(part * unit for part, unit in zip(parts, (1, 1, 60, 3600), strict=True))).seconds
        except ValueError as error:
            self._refuse(f"every(): {error}")
        if self._written:
            self._refuse("every(...) counts seconds and has no days and hours: remove it, or the calls before it")
        self._seconds = found
        return self

    # --- minutes

    every_minute = writes(minute="*")
    every_two_minutes = writes(minute="*/2")
    every_three_minutes = writes(minute="*/3")
    every_four_minutes = writes(minute="*/4")
    every_five_minutes = writes(minute="*/5")
    every_ten_minutes = writes(minute="*/10")
    every_fifteen_minutes = writes(minute="*/15")
    every_thirty_minutes = writes(minute="0,30")

    # --- hours

    hourly = writes("At minute 0.", minute=0)

    def hourly_at(self, minute: Number | Sequence[Number]) -> Self:
        """At this minute of each hour, or at these."""
        return self._write(minute=self._minutes(minute))

    def every_odd_hour(self, minute: Number | Sequence[Number] = 0) -> Self:
        """At 1, 3, 5 ... 23 o'clock."""
        return self._write(minute=self._minutes(minute), hour="1-23/2")

    def every_two_hours(self, minute: Number | Sequence[Number] = 0) -> Self:
        """At 0, 2, 4 ... 22 o'clock."""
        return self._write(minute=self._minutes(minute), hour="*/2")

    def every_three_hours(self, minute: Number | Sequence[Number] = 0) -> Self:
        return self._write(minute=self._minutes(minute), hour="*/3")

    def every_four_hours(self, minute: Number | Sequence[Number] = 0) -> Self:
        return self._write(minute=self._minutes(minute), hour="*/4")

    def every_six_hours(self, minute: Number | Sequence[Number] = 0) -> Self:
        return self._write(minute=self._minutes(minute), hour="*/6")

    # --- times of the day

    daily = writes("At 0:00.", minute=0, hour=0)

    def daily_at(self, time: str) -> Self:
        """At this time of the day, "13:00", or at this hour, "13"."""
        return self._write_time(time)

    at = daily_at  # reads better after days: `.mondays().at("8:00")`

    def twice_daily(self, first: Number = 1, second: Number = 13) -> Self:
        """At two hours of the day, at minute 0."""
        return self.twice_daily_at(first, second)

    def twice_daily_at(self, first: Number = 1, second: Number = 13, minute: Number = 0) -> Self:
        """At this minute of two hours of the day."""
        hours = self._numbers([first, second], 0, 23, "hour")
        return self._write(minute=self._number(minute, 0, 59, "minute"), hour=hours)

    # --- seconds; in each minute that the other fields name

    every_second = writes(second="*", minute="*")
    every_two_seconds = writes(second="*/2", minute="*")
    every_five_seconds = writes(second="*/5", minute="*")
    every_ten_seconds = writes(second="*/10", minute="*")
    every_fifteen_seconds = writes(second="*/15", minute="*")
    every_twenty_seconds = writes(second="*/20", minute="*")
    every_thirty_seconds = writes(second="*/30", minute="*")

    def _minutes(self, value: Number | Sequence[Number]) -> str:
        return self._numbers(value, 0, 59, "minute")
