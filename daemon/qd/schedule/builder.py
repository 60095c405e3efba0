"""What app.schedule(...) returns: an entry while it is being declared. `_entry` makes the frozen Entry.

app.schedule(report.bind(7)).weekdays().at("7:00").timezone("Europe/Berlin").missed("once")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, get_args

from qd.dispatch.composite import Chain
from qd.options.kinds import KINDS, did_you_mean, span_in_code
from qd.schedule.entry import Act, CallTask, Entry, Filter, JobTask, Missed, Task, called
from qd.schedule.frequencies import Frequencies, flat, shown
from qd.schedule.timing import Cron, Every, Timing, zone_of

if TYPE_CHECKING:
    from qd.jobs.plan import Duration

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
        if not self._has_time:
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
