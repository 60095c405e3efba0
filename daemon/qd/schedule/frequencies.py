"""How often an entry is due: a cron expression, every so many seconds, or the words of Laravel's scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Self

from qd.schedule.days import Days
from qd.schedule.fields import FIELDS, Number
from qd.schedule.timing import Every
from qd.units import span_in_code


class Frequencies(Days):
    """Each word writes a few fields of the expression, and leaves the others as they are."""

    def cron(self, expression: str) -> Self:
        """As a line of crontab says it, five fields, or six with the seconds first; names, ranges, L, #, @daily."""
        from qd.schedule.cron import read  # not on the way of `import qd`

        try:
            second, *fields = read(expression).split()
        except ValueError as error:
            self._refuse(str(error))
        fields = fields if len(expression.split()) < 6 else [second, *fields]
        self._written.clear()
        return self._write(**dict(zip(FIELDS[-len(fields) :], fields, strict=True)))

    def every(self, span: float | timedelta = 0, *, seconds: float = 0, minutes: float = 0, hours: float = 0) -> Self:
        """Each time that this long has passed since 1970-01-01 0:00 UTC: the same moments on all hosts. span: seconds, or a
        timedelta."""
        try:
            parts = [span_in_code(each) for each in (span, seconds, minutes, hours)]
            found = Every(sum(part * unit for part, unit in zip(parts, (1, 1, 60, 3600), strict=True))).seconds
        except ValueError as error:
            self._refuse(f"every(): {error}")
        if self._written:
            self._refuse("every(...) counts seconds and has no days and hours: leave it out, or what stands before it")
        self._seconds = found
        return self

    # --- minutes

    def every_minute(self) -> Self:
        return self._write(minute="*")

    def every_two_minutes(self) -> Self:
        return self._write(minute="*/2")

    def every_three_minutes(self) -> Self:
        return self._write(minute="*/3")

    def every_four_minutes(self) -> Self:
        return self._write(minute="*/4")

    def every_five_minutes(self) -> Self:
        return self._write(minute="*/5")

    def every_ten_minutes(self) -> Self:
        return self._write(minute="*/10")

    def every_fifteen_minutes(self) -> Self:
        return self._write(minute="*/15")

    def every_thirty_minutes(self) -> Self:
        return self._write(minute="0,30")

    # --- hours

    def hourly(self) -> Self:
        """At minute 0."""
        return self._write(minute=0)

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

    def daily(self) -> Self:
        """At 0:00."""
        return self._write(minute=0, hour=0)

    def daily_at(self, time: str) -> Self:
        """At this time of the day, "13:00", or at this hour, "13"."""
        return self._write_time(time)

    def at(self, time: str) -> Self:
        """The same as daily_at; it reads better behind days: `.mondays().at("8:00")`."""
        return self._write_time(time)

    def twice_daily(self, first: Number = 1, second: Number = 13) -> Self:
        """At two hours of the day, at minute 0."""
        return self.twice_daily_at(first, second)

    def twice_daily_at(self, first: Number = 1, second: Number = 13, minute: Number = 0) -> Self:
        """At this minute of two hours of the day."""
        hours = self._numbers([first, second], 0, 23, "hour")
        return self._write(minute=self._number(minute, 0, 59, "minute"), hour=hours)

    # --- seconds: in each minute that the other fields name

    def every_second(self) -> Self:
        return self._write(second="*", minute="*")

    def every_two_seconds(self) -> Self:
        return self._write(second="*/2", minute="*")

    def every_five_seconds(self) -> Self:
        return self._write(second="*/5", minute="*")

    def every_ten_seconds(self) -> Self:
        return self._write(second="*/10", minute="*")

    def every_fifteen_seconds(self) -> Self:
        return self._write(second="*/15", minute="*")

    def every_twenty_seconds(self) -> Self:
        return self._write(second="*/20", minute="*")

    def every_thirty_seconds(self) -> Self:
        return self._write(second="*/30", minute="*")

    def _minutes(self, value: Number | Sequence[Number]) -> str:
        return self._numbers(value, 0, 59, "minute")
