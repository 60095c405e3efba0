"""A slow and simple model of Debian's cron, to compare with: it wakes up each minute and reads the wall clock.

After a clock change (cron.c, main) it does this:

    up to 5 minutes forward    every job, for each skipped minute
    up to 3 hours forward      wildcard jobs (minute or hour begins with a star) for this minute, then the other jobs for
                               each skipped minute
    up to 3 hours back         only wildcard jobs, until the wall clock has caught up
    more                       it continues from the new time

Also time zones with clock changes of every kind, and the times of these changes.
"""

from __future__ import annotations

import calendar
import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from functools import cache
from zoneinfo import ZoneInfo

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MINUTE = 60

Fits = Callable[[date], bool]


class Job:
    """A line of a crontab: five fields."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.upper().split()
        self.beat = minute[0] == "*" or hour[0] == "*"
        self.both = day[0] == "*" or weekday[0] == "*"
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.months = numbers(month, 1, 12, MONTHS, 1)
        self.days = [of_month(term) for term in day.split(",")]
        self.weekdays = [of_week(term) for term in weekday.split(",")]

    def fits(self, wall: int) -> bool:
        """wall: minutes of the wall clock since 1970-01-01 00:00."""
        day = date.fromordinal(719163 + wall // 1440)
        if wall % 60 not in self.minutes or wall // 60 % 24 not in self.hours or day.month not in self.months:
            return False
        fits = any(one(day) for one in self.days), any(one(day) for one in self.weekdays)
        return all(fits) if self.both else any(fits)


def numbers(field: str, least: int, most: int, names: list[str] | None = None, first: int = 0) -> set[int]:
    def number(word: str) -> int:
        return names.index(word) + first if names and word in names else int(word)

    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        start, _, end = span.partition("-")
        if start == "*":
            found.update(range(least, most + 1, int(step or 1)))
        else:
            found.update(range(number(start), (number(end or start) if end or not step else most) + 1, int(step or 1)))
    return found


def of_month(term: str) -> Fits:
    if term == "L":
        return lambda day: day.day == last(day)
    if term == "LW":
        return lambda day: day.day == max(n for n in range(1, last(day) + 1) if day.replace(day=n).weekday() < 5)
    days = numbers(term, 1, 31)
    return lambda day: day.day in days


def of_week(term: str) -> Fits:
    if term.endswith("L"):
        return lambda day: day.isoweekday() % 7 == int(term[:-1]) % 7 and day.day + 7 > last(day)
    word, _, nth = term.partition("#")
    days = {n % 7 for n in numbers(word.replace("-SUN", "-7"), 0, 7, DAYS)}
    return lambda day: day.isoweekday() % 7 in days and (not nth or (day.day - 1) // 7 + 1 == int(nth))


def last(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def runs(expression: str, zone: str, start: int, end: int) -> Iterator[int]:
    """The unix seconds in (start, end] at which a cron that was started an hour or more before `start` runs the job. Each
    minute is listed once, even if cron runs the job several times in it."""
    job, where = Job(expression), ZoneInfo(zone)

    def wall_at(moment: int) -> int:
        offset = datetime.fromtimestamp(moment, where).utcoffset()
        assert offset is not None
        return (moment + int(offset.total_seconds())) // MINUTE

    first = start // MINUTE * MINUTE - 4 * 3600
    virtual = wall_at(first)
    for moment in range(first + MINUTE, end + 1, MINUTE):
        wall = wall_at(moment)
        found, virtual = awake(job, wall, virtual)
        if found and moment > start:
            yield moment


def awake(job: Job, wall: int, virtual: int) -> tuple[bool, int]:
    """Whether the job runs at this minute of the wall clock, and the minute up to which all work is done then."""
    jumped = wall - virtual
    if 1 < jumped <= 5:
        return any(job.fits(minute) for minute in range(virtual + 1, wall + 1)), wall
    if 5 < jumped <= 180:
        missed = range(wall, wall + 1) if job.beat else range(virtual + 1, wall + 1)
        return any(job.fits(minute) for minute in missed), wall
    if -180 < jumped <= 0:
        return job.beat and job.fits(wall), virtual
    return job.fits(wall), wall


YEARS = {
    "Europe/Berlin": 2025,  # at 2:00
    "America/New_York": 2025,
    "Australia/Lord_Howe": 2025,  # by half an hour
    "America/St_Johns": 2025,  # an offset of 3:30
    "America/Havana": 2025,  # at midnight: one day begins at 1:00, another has midnight twice
    "America/Santiago": 2025,  # back from midnight to the day before
    "Africa/Cairo": 2025,
    "Africa/Casablanca": 2025,  # back for Ramadan
    "Pacific/Apia": 2011,  # no 30 December
    "Asia/Kolkata": 2025,  # never
    "UTC": 2025,
}
QUARTER = 900


@cache
def changes(zone: str) -> tuple[int, ...]:
    """The unix seconds of the clock changes in the year of this zone."""
    return changes_in(zone, YEARS[zone])


def changes_in(zone: str, year: int) -> tuple[int, ...]:
    where = ZoneInfo(zone)
    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    offsets = [
        (moment, datetime.fromtimestamp(moment, where).utcoffset())
        for moment in range(start, start + 366 * 86400, QUARTER)
    ]
    return tuple(moment for (_, old), (moment, new) in itertools.pairwise(offsets) if old != new)


def wall(moment: float, zone: str) -> str:
    """The local time there: "2025-03-30 03:00:00+0200"."""
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S%z")
