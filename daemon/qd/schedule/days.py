"""On which days, months and years an entry is due: the words of Laravel's scheduler, in Python's spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from qd.schedule.fields import Fields, Number
from qd.units import did_you_mean

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
Weekday = int | str  # 0 and 7: Sunday, 1: Monday ...; or its name, "monday", "mon"


class Days(Fields):
    """Each word writes a few fields of the expression, and leaves the others as they are."""

    # --- days of the week: which, not when

    def days(self, *days: Weekday | Sequence[Weekday]) -> Self:
        """On these days of the week: 0 and 7 are Sunday, 1 is Monday; or by name, "monday", "mon". A text may hold several:
        "1-5", "mon,wed"."""
        several = [part for each in flat(days) for part in (each.split(",") if isinstance(each, str) else [each])]
        if not several:
            self._refuse("days() was given no day (0 to 7, or 'monday')")
        return self._write(weekday=",".join([self._days(each) for each in several]))

    def weekdays(self) -> Self:
        """Monday to Friday."""
        return self._write(weekday="1-5")

    def weekends(self) -> Self:
        """Saturday and Sunday."""
        return self._write(weekday="6,0")

    def mondays(self) -> Self:
        return self._write(weekday=1)

    def tuesdays(self) -> Self:
        return self._write(weekday=2)

    def wednesdays(self) -> Self:
        return self._write(weekday=3)

    def thursdays(self) -> Self:
        return self._write(weekday=4)

    def fridays(self) -> Self:
        return self._write(weekday=5)

    def saturdays(self) -> Self:
        return self._write(weekday=6)

    def sundays(self) -> Self:
        return self._write(weekday=0)

    # --- weeks, months, years: at midnight unless a time is given

    def weekly(self) -> Self:
        """Sundays at 0:00."""
        return self._write(minute=0, hour=0, weekday=0)

    def weekly_on(self, day: Weekday | Sequence[Weekday], time: str = "0:00") -> Self:
        """On this day, or these days, of the week."""
        return self._write_time(time).days(day)

    def monthly(self) -> Self:
        """On the 1st at 0:00."""
        return self._write(minute=0, hour=0, day=1)

    def monthly_on(self, day: Number = 1, time: str = "0:00") -> Self:
        """On this day of each month that has it."""
        return self._write_time(time)._write(day=self._day(day))

    def twice_monthly(self, first: Number = 1, second: Number = 16, time: str = "0:00") -> Self:
        """On two days of each month."""
        return self.days_of_month(first, second)._write_time(time)

    def last_day_of_month(self, time: str = "0:00") -> Self:
        """On the last day of each month, whichever that is in it."""
        return self._write_time(time)._write(day="L")

    def days_of_month(self, *days: Number | Sequence[Number]) -> Self:
        """On these days of each month that has them, at 0:00; `.days_of_month(1, 15).at("13:00")`."""
        return self._write(minute=0, hour=0, day=self._numbers(flat(days), 1, 31, "day of a month"))

    def quarterly(self) -> Self:
        """On the 1st of January, April, July and October at 0:00."""
        return self._write(minute=0, hour=0, day=1, month="1-12/3")

    def quarterly_on(self, day: Number = 1, time: str = "0:00") -> Self:
        """On this day of January, April, July and October."""
        return self._write_time(time)._write(day=self._day(day), month="1-12/3")

    def yearly(self) -> Self:
        """On the 1st of January at 0:00."""
        return self._write(minute=0, hour=0, day=1, month=1)

    def yearly_on(self, month: Number = 1, day: Number = 1, time: str = "0:00") -> Self:
        """On this day of each year."""
        return self._write_time(time)._write(day=self._day(day), month=self._number(month, 1, 12, "month"))

    def _day(self, value: object) -> int:
        return self._number(value, 1, 31, "day of a month")

    def _days(self, value: object) -> str:
        """One of them, or from one to another: "1-5"."""
        first, to, last = value.partition("-") if isinstance(value, str) else (value, "", "")
        if not to:
            return str(self._weekday(first))
        begin, end = self._weekday(first), self._weekday(last)
        if begin >= end:
            self._refuse(f"{value!r} are no days of the week in a row (written '1-5')")
        return f"{begin}-{end}"

    def _weekday(self, value: object) -> int:
        if not isinstance(value, str) or value.strip().isdecimal():
            return self._number(value, 0, 7, "day of the week")
        word = value.strip().lower()
        found = [number for number, name in enumerate(WEEKDAYS) if word in (name, name[:3])]
        if not found:
            self._refuse(f"{value!r} is no day of the week{did_you_mean(word, WEEKDAYS)}")
        return found[0]


def flat(given: Sequence[object]) -> list[Any]:
    """(1, [2, 3]) -> [1, 2, 3]: days may be given one by one, or as a list."""
    return [one for each in given for one in (each if isinstance(each, list | tuple | range) else [each])]
