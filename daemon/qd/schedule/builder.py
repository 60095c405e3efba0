"""What app.schedule(...) returns: an entry while it is being declared. `_entry` makes the frozen Entry.

app.schedule(report.bind(7)).weekdays().at("7:00").timezone("Europe/Berlin").missed("once")

Frequencies   how often and on which days
Scheduled     everything else
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self, TypedDict, TypeVar, get_args

from qd.dispatch.composite import Chain
from qd.errors import DeclarationError
from qd.options.kinds import KINDS, did_you_mean, span_in_code
from qd.schedule.entry import Act, CallTask, Entry, Filter, JobTask, Missed, Task, called
from qd.schedule.timing import Cron, Every, Timing, read, zone_of

if TYPE_CHECKING:
    from qd.jobs.plan import Duration

S = TypeVar("S", bound="Frequencies")
FIELDS = ("second", "minute", "hour", "day", "month", "weekday")
Number = int | str  # 5 or "5"; Laravel accepts strings, too
Weekday = int | str  # 0 and 7: Sunday, 1: Monday ...; or its name, "monday", "mon"
WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{1,2}))?")
_DIGITS = re.compile(r"[0-9]{1,2}")


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


def flat(given: Sequence[object]) -> list[Any]:
    """(1, [2, 3]) -> [1, 2, 3]: days may be given one by one or as a list."""
    return [one for each in given for one in (each if isinstance(each, list | tuple | range) else [each])]


class Frequencies:
    """How often and on which days: cron(), every(), and the methods of Laravel's scheduler in Python spelling. Each writes
    some of the six fields of the entry's cron expression and leaves the others, so that methods combine."""

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

    def cron(self, expression: str) -> Self:
        """A crontab expression: five fields, or six with seconds first; names, ranges, L, #, @daily."""
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
        """At 0, 3, 6 ... 21 o'clock."""
        return self._write(minute=self._minutes(minute), hour="*/3")

    def every_four_hours(self, minute: Number | Sequence[Number] = 0) -> Self:
        """At 0, 4, 8 ... 20 o'clock."""
        return self._write(minute=self._minutes(minute), hour="*/4")

    def every_six_hours(self, minute: Number | Sequence[Number] = 0) -> Self:
        """At 0, 6, 12 and 18 o'clock."""
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


DAY = timedelta(days=1)
Names = dict[str, tuple[str, int]]  # names given with .name() -> where


class Words(TypedDict, total=False):
    """The methods as keywords: app.schedule(report.bind(7), cron="0 7 * * *", missed="once")."""

    cron: str
    every: Duration
    timezone: str
    overlap: bool
    missed: Missed
    name: str


class Scheduled(Frequencies):
    """One entry of the schedule. Each method returns the entry, so that calls can be chained."""

    def __init__(self, task: Task, own_name: str, origin: tuple[str, int], taken: Names) -> None:
        super().__init__(origin)
        self._task, self._own_name, self._taken = task, own_name, taken
        self._name = ""
        self._zone = ""
        self._fields: dict[str, object] = {}  # fields of Entry that were set
        self._filters: list[Callable[[str], Filter]] = []  # take the zone, which may be set later

    # --- general

    def name(self, name: str) -> Self:
        """Its name in the log, in the store and on the command line: unique in the app, and the same on all hosts."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or name.strip() == "*":
            self._refuse(f"{name!r} is not a name: write printable text, other than '*'")
        name = name.strip()
        if self._taken.setdefault(name, self._origin) != self._origin:
            self._refuse(f"the entry at {shown(self._taken[name])} has the name '{name}' already: rename one of them")
        self._name = name
        return self

    def timezone(self, zone: str) -> Self:
        """Use this time zone for its days and hours ("Europe/Berlin") instead of `[schedule] timezone`."""
        try:
            self._zone = KINDS["zone"](zone)
        except ValueError as error:
            self._refuse(str(error))
        return self

    def missed(self, missed: Missed) -> Self:
        """What to do with missed ticks: "skip" ignores them, "once" runs the latest one, "all" runs each of them."""
        if missed not in get_args(Missed):
            near = did_you_mean(str(missed), get_args(Missed))
            self._refuse(f"missed({missed!r}) is not one of 'skip', 'once' and 'all'{near}")
        return self._set(missed=missed)

    def without_overlapping(self) -> Self:
        """Skip a tick while an earlier run is alive, on any host."""
        return self._set(alone=True)

    def on_every_host(self) -> Self:
        """Run each tick once on every host with a scheduler, instead of once on one of them."""
        return self._set(every_host=True)

    def even_in_maintenance_mode(self) -> Self:
        """Run during `qd down`, too."""
        return self._set(in_maintenance=True)

    # --- conditions

    def environments(self, *environments: str | Sequence[str]) -> Self:
        """Run only if QD_ENV is one of these."""
        names = flat(environments)
        if not names or not all(isinstance(each, str) and each.strip() for each in names):
            self._refuse(f"{names!r} does not name environments (write environments('production', 'staging'))")
        return self._set(environments=tuple(dict.fromkeys(each.strip() for each in names)))

    def when(self, answer: Callable[[], object] | bool) -> Self:
        """Run only if this returns true. It is called at each tick, and may take 5 seconds."""
        return self._filter("when", answer)

    def skip(self, answer: Callable[[], object] | bool) -> Self:
        """Run only if this returns false."""
        return self._filter("skip", answer)

    def between(self, start: str, end: str) -> Self:
        """Run only at these times of the day, both included, in the entry's zone; "22:00", "6:00" spans midnight."""
        return self._hours(start, end, inside=True)

    def unless_between(self, start: str, end: str) -> Self:
        """Run only outside of these times of the day."""
        return self._hours(start, end, inside=False)

    def _filter(self, word: str, answer: Callable[[], object] | bool) -> Self:
        if not isinstance(answer, bool) and not callable(answer):
            self._refuse(f"{word}({answer!r}) cannot be called: give a function without arguments, or True or False")
        if inspect.iscoroutinefunction(answer):
            self._refuse(f"{word}({called(answer)}) is async, and would always be true: give a def")
        ask: Callable[[], object] = answer if callable(answer) else lambda: answer
        why = f"{word}({called(answer)}) returned {'false' if word == 'when' else 'true'}"
        made = Filter(lambda at: bool(ask()) == (word == "when"), why, foreign=callable(answer))
        self._filters.append(lambda zone: made)
        return self

    def _hours(self, start: str, end: str, *, inside: bool) -> Self:
        first, last = time(*self._time(start)), time(*self._time(end))
        if first == last:
            self._refuse(f"{start} to {end} is empty: give two different times")
        self._filters.append(lambda zone: hours(first, last, zone, inside))
        return self

    # --- its run; a job is run by a worker, so these raise for jobs

    def in_background(self) -> Self:
        """Run alongside other entries of the same tick, instead of after them."""
        return self._run_is("in_background", background=True)

    def timeout(self, span: Duration) -> Self:
        """Kill a run that takes longer. Seconds, or a timedelta."""
        try:
            seconds = span_in_code(span)
        except ValueError as error:
            self._refuse(f"timeout: {error}")
        return self._run_is("timeout", timeout=seconds)

    def output_to(self, path: str | Path, *, append: bool = False) -> Self:
        """Write stdout and stderr of the run to this file instead of the log. append: keep what is there."""
        if not isinstance(path, str | Path) or not str(path):
            self._refuse(f"output_to({path!r}) does not name a file")
        return self._run_is("output_to", output=Path(path), append=append)

    def append_output_to(self, path: str | Path) -> Self:
        """The same as output_to(path, append=True)."""
        return self.output_to(path, append=True)

    def before(self, act: Act) -> Self:
        """Call this before each run, in its process. An exception is logged and otherwise ignored."""
        return self._hook("before", act)

    def after(self, act: Act) -> Self:
        """Call this after each run, whether it succeeded or failed."""
        return self._hook("after", act)

    then = after

    def on_success(self, act: Act) -> Self:
        """Call this after a successful run: the function returned, the command exited with 0."""
        return self._hook("on_success", act)

    def on_failure(self, act: Act) -> Self:
        """Call this after a failed run."""
        return self._hook("on_failure", act)

    def _hook(self, word: str, act: Act) -> Self:
        if not callable(act) or takes_arguments(act):
            self._refuse(f"{word}({called(act)}) cannot be called: give a function without arguments")
        held = self._fields.get(word, ())
        assert isinstance(held, tuple)
        return self._run_is(word, **{word: (*held, act)})

    def _run_is(self, word: str, **values: object) -> Self:
        if isinstance(self._task, JobTask):
            self._refuse(
                f"{word} is for runs, and a job is run by a worker: set it for the job "
                "(timeout=, middleware=, events), or schedule a function that dispatches the job"
            )
        return self._set(**values)

    def _set(self, **values: object) -> Self:
        self._fields.update(values)
        return self

    # --- keywords, and the result

    def _take(self, words: Words) -> Self:
        for word, value in words.items():
            if word not in Words.__annotations__:
                self._refuse(f"unknown keyword '{word}'{did_you_mean(word, Words.__annotations__)}")
            if word != "overlap":
                getattr(self, word)(value)
            elif isinstance(value, bool):
                self._set(alone=not value)
            else:
                self._refuse(f"overlap={value!r} is neither True nor False")
        return self

    def _timing(self, zone: str) -> Timing:
        """Raises DeclarationError if nothing says when it runs, or it never does."""
        if self._seconds is not None:
            return Every(self._seconds)
        if not self._written.keys() & {"second", "minute", "hour"}:
            self._refuse(
                "it has days but no time: add .daily(), .at('8:00'), .hourly() or .every_minute()"
                if self._written
                else "nothing says when it runs: add .daily(), .every_five_minutes(), .cron('...') or .every(seconds=10)"
            )
        try:
            return Cron(self._expression, zone)
        except ValueError as error:
            self._refuse(str(error))

    def _entry(self, zone: str) -> Entry:
        """zone: used if the entry names none. Raises DeclarationError."""
        zone = self._zone or zone
        made = tuple([make(zone) for make in self._filters])
        name = self._name or self._own_name
        if not name:
            what = called(self._task.function) if isinstance(self._task, CallTask) else "what it runs"
            self._refuse(f"{what} has no name: give it one with .name('nightly')")
        if isinstance(self._task, JobTask) and self._fields.get("alone"):
            self._check_alone(self._task)
        timing = self._timing(zone)
        return Entry(name, self._task, timing, filters=made, origin=self._origin, **self._fields)  # type: ignore[arg-type]

    def _check_alone(self, task: JobTask) -> None:
        """It becomes a unique job, and a job has one lock."""
        if isinstance(task.call, Chain):
            self._refuse("without_overlapping is for one job, and a chain is several: set unique= on its first job")
        if task.plan.options.unique is not None or task.plan.key is not None:
            word = "unique" if task.plan.key is None else "key"
            self._refuse(f"its job has {word}=, which keeps it single already: remove that or without_overlapping")

    if not TYPE_CHECKING:  # type checkers report unknown methods

        def __getattr__(self, word: str) -> object:
            """Raises AttributeError with a suggestion, also for Laravel's spelling: `.dailyAt("8:00")`."""
            snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in word)
            known = [name for name in dir(type(self)) if not name.startswith("_")]
            near = "" if word.startswith("_") else did_you_mean(snake, known)
            raise AttributeError(f"an entry of the schedule has no method '{word}'{near}", name=word, obj=None)

    def __repr__(self) -> str:
        return f"<scheduled {self._name or self._own_name or 'without a name'} at {shown(self._origin)}>"


def takes_arguments(function: Callable[..., object]) -> bool:
    """Whether it cannot be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return False
    return False


def hours(start: time, end: time, zone: str, inside: bool) -> Filter:
    """Ticks inside, or outside, of these times of the day. Both ends belong to it; it spans midnight if end < start."""

    def within(at: float) -> bool:
        now = datetime.fromtimestamp(at, zone_of(zone)).time()
        return start <= now <= end if start <= end else now >= start or now <= end

    text = f"{start:%H:%M}-{end:%H:%M}"
    if inside:
        return Filter(within, f"outside of {text}", shut_until=lambda at: clock_shows(start, at, zone) - 0.001)
    return Filter(lambda at: not within(at), f"within {text}", shut_until=lambda at: clock_shows(end, at, zone))


def clock_shows(hour: time, at: float, zone: str) -> float:
    """The next time, from `at` on, at which clocks show this time of the day. If they are changed before that, the hours
    move, and it is just before the next full minute at most."""
    wall = datetime.fromtimestamp(at, zone_of(zone))
    found = at + ((datetime.combine(wall, hour) - wall.replace(tzinfo=None)) % DAY).total_seconds()
    same = datetime.fromtimestamp(found, zone_of(zone)).utcoffset() == wall.utcoffset()
    return found if same else min(found, at - at % 60 + 59.999)
