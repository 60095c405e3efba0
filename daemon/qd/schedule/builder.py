"""What app.schedule(...) gives: an entry while it is being declared. `_entry` makes the frozen one of it.

app.schedule(report.bind(7)).weekdays().at("7:00").timezone("Europe/Berlin").missed("once")

What an entry asks of a tick before it is taken: the user's own questions, and times of the day.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, get_args

from qd.dispatch.chain import Chain
from qd.options.kinds import KINDS, did_you_mean, span_in_code
from qd.schedule.entry import Act, CallTask, Entry, Filter, JobTask, Missed, Task, called
from qd.schedule.frequencies import Frequencies, flat, shown
from qd.schedule.timing import Cron, Every, Timing, zone_of

if TYPE_CHECKING:
    from qd.jobs.plan import Duration


Names = dict[str, tuple[str, int]]  # those that were given by hand -> where


class Words(TypedDict, total=False):
    """The same as keywords: app.schedule(report.bind(7), cron="0 7 * * *", missed="once")."""

    cron: str
    every: Duration
    timezone: str
    overlap: bool
    missed: Missed
    name: str


class Scheduled(Frequencies):
    """One entry of the schedule. Each word gives it back, so that they are written one behind the other."""

    def __init__(self, task: Task, own_name: str, origin: tuple[str, int], taken: Names) -> None:
        super().__init__(origin)
        self._task, self._own_name, self._taken = task, own_name, taken
        self._name = ""
        self._zone = ""
        self._said: dict[str, object] = {}  # the fields of Entry that were given
        self._filters: list[Callable[[str], Filter]] = []  # each is made once the zone is known

    # --- what it is

    def name(self, name: str) -> Self:
        """What it is called in the log, in Redis and on the command line: the same on all hosts, and no other entry's."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or name.strip() == "*":
            self._refuse(f"{name!r} is no name")
        name = name.strip()
        if self._taken.setdefault(name, self._origin) != self._origin:
            self._refuse(f"the entry at {shown(self._taken[name])} is called '{name}' already: give one another name")
        self._name = name
        return self

    def timezone(self, zone: str) -> Self:
        """Reckon its days and hours in this zone, "Europe/Berlin", instead of `[schedule] timezone`."""
        try:
            self._zone = KINDS["zone"](zone)
        except ValueError as error:
            self._refuse(str(error))
        return self

    def missed(self, missed: Missed) -> Self:
        """What becomes of ticks that no scheduler took in time: "skip" passes them over, "once" runs the latest of them,
        "all" each one."""
        if missed not in get_args(Missed):
            near = did_you_mean(str(missed), get_args(Missed))
            self._refuse(f"missed({missed!r}) is none of 'skip', 'once' and 'all'{near}")
        return self._say(missed=missed)

    def without_overlapping(self) -> Self:
        """Skip a tick while the run of an earlier one goes on, on whatever host."""
        return self._say(alone=True)

    def on_every_host(self) -> Self:
        """Run each tick once on every host that schedules, instead of once over all of them."""
        return self._say(every_host=True)

    def even_in_maintenance_mode(self) -> Self:
        """Run after `qd down`, too."""
        return self._say(in_maintenance=True)

    # --- whether a tick is taken

    def environments(self, *environments: str | Sequence[str]) -> Self:
        """Only where QD_ENV is one of these."""
        names = flat(environments)
        if not names or not all(isinstance(each, str) and each.strip() for each in names):
            self._refuse(f"{names!r} names no environments (written environments('production', 'staging'))")
        return self._say(environments=tuple(dict.fromkeys(each.strip() for each in names)))

    def when(self, answer: Callable[[], object] | bool) -> Self:
        """Only while this says yes. It is asked at each tick, in the scheduler, and may take 5 seconds."""
        return self._filter(when, answer)

    def skip(self, answer: Callable[[], object] | bool) -> Self:
        """Only while this says no."""
        return self._filter(skip, answer)

    def between(self, start: str, end: str) -> Self:
        """Only at these times of the day, both ends included, in the entry's zone; "22:00", "6:00" goes over midnight."""
        begin, until = self._times(start, end)
        self._filters.append(lambda zone: between(begin, until, zone))
        return self

    def unless_between(self, start: str, end: str) -> Self:
        """Only outside of these times of the day."""
        begin, until = self._times(start, end)
        self._filters.append(lambda zone: unless_between(begin, until, zone))
        return self

    def _filter(
        self, make: Callable[[Callable[[], object] | bool], Filter], answer: Callable[[], object] | bool
    ) -> Self:
        try:
            made = make(answer)
        except ValueError as error:
            self._refuse(str(error))
        self._filters.append(lambda zone: made)
        return self

    def _times(self, start: str, end: str) -> tuple[time, time]:
        begin, until = time(*self._time(start)), time(*self._time(end))
        if begin == until:
            self._refuse(f"from {start} to {end} is no time at all")
        return begin, until

    # --- its run; not of a job, whose run is a worker's

    def in_background(self) -> Self:
        """Run beside other entries of the same moment, instead of after them."""
        return self._run_is("in_background", background=True)

    def timeout(self, span: Duration) -> Self:
        """End a run that takes longer. Seconds, or a timedelta."""
        try:
            seconds = span_in_code(span)
        except ValueError as error:
            self._refuse(f"timeout: {error}")
        return self._run_is("timeout", timeout=seconds)

    def output_to(self, path: str | Path, *, append: bool = False) -> Self:
        """Write what the run says, stdout and stderr, into this file, instead of the log. append: behind what is there."""
        if not isinstance(path, str | Path) or not str(path):
            self._refuse(f"output_to({path!r}) names no file")
        return self._run_is("output_to", output=Path(path), append=append)

    def append_output_to(self, path: str | Path) -> Self:
        """The same as output_to(path, append=True)."""
        return self.output_to(path, append=True)

    def before(self, act: Act) -> Self:
        """Call this before each run, in its process. What it raises is logged, and changes nothing."""
        return self._hook("before", act)

    def after(self, act: Act) -> Self:
        """Call this after each run, however it went."""
        return self._hook("after", act)

    then = after

    def on_success(self, act: Act) -> Self:
        """Call this after a run that went well: the function returned, the command ended with 0."""
        return self._hook("on_success", act)

    def on_failure(self, act: Act) -> Self:
        """Call this after a run that failed."""
        return self._hook("on_failure", act)

    def _hook(self, word: str, act: Act) -> Self:
        if not callable(act) or takes_arguments(act):
            self._refuse(f"{word}({called(act)}) cannot be called: give a function without arguments")
        held = self._said.get(word, ())
        assert isinstance(held, tuple)
        return self._run_is(word, **{word: (*held, act)})

    def _run_is(self, word: str, **said: object) -> Self:
        if isinstance(self._task, JobTask):
            self._refuse(
                f"{word} is about a run, and the run of a job is a worker's: say it of the job "
                "(timeout=, middleware=, events), or schedule a function that dispatches it"
            )
        return self._say(**said)

    def _say(self, **said: object) -> Self:
        self._said.update(said)
        return self

    # --- as keywords, and made

    def _take(self, words: Words) -> Self:
        for word, value in words.items():
            if word not in Words.__annotations__:
                self._refuse(f"unknown word '{word}'{did_you_mean(word, Words.__annotations__)}")
            if word == "overlap":
                self._overlap(value)
            else:
                getattr(self, word)(value)
        return self

    def _overlap(self, may: object) -> None:
        if not isinstance(may, bool):
            self._refuse(f"overlap={may!r} is neither True nor False")
        self._say(alone=not may)

    def _timing(self, zone: str) -> Timing:
        """Raises DeclarationError: nothing says when, or it never comes."""
        if self._seconds is not None:
            return Every(self._seconds)
        if not self._says_when:
            self._refuse(
                "it says on which days, not when: add .daily(), .at('8:00'), .hourly() or .every_minute()"
                if self._written
                else "it says nothing of when: add .daily(), .every_five_minutes(), .cron('...') or .every(seconds=10)"
            )
        try:
            return Cron(self._expression, zone)
        except ValueError as error:
            self._refuse(str(error))

    def _entry(self, zone: str) -> Entry:
        """zone: where the entry names none. Raises DeclarationError."""
        zone = self._zone or zone
        made = tuple([make(zone) for make in self._filters])
        name = self._name or self._own_name
        if not name:
            what = called(self._task.function) if isinstance(self._task, CallTask) else "what it runs"
            self._refuse(f"{what} has no name of its own: give it one with .name('nightly')")
        if isinstance(self._task, JobTask) and self._said.get("alone"):
            self._check_alone(self._task)
        timing = self._timing(zone)
        return Entry(name, self._task, timing, filters=made, origin=self._origin, **self._said)  # type: ignore[arg-type]

    def _check_alone(self, task: JobTask) -> None:
        """It is made a unique job; a job has one lock."""
        if isinstance(task.call, Chain):
            self._refuse("without_overlapping is about one job, and a chain is several: say unique= of its first job")
        if task.plan.options.unique is not None or task.plan.key is not None:
            word = "unique" if task.plan.key is None else "key"
            self._refuse(f"its job has {word}=, which keeps it single already: leave that, or without_overlapping, out")

    if not TYPE_CHECKING:  # where types are checked, they tell of a word that there is not

        def __getattr__(self, word: str) -> object:
            """Raises AttributeError, with the word that may be meant: `.dailyAt("8:00")`."""
            snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in word)
            known = [name for name in dir(type(self)) if not name.startswith("_")]
            near = "" if word.startswith("_") else did_you_mean(snake, known)
            raise AttributeError(f"an entry of the schedule has no word '{word}'{near}", name=word, obj=None)

    def __repr__(self) -> str:
        return f"<scheduled {self._name or self._own_name or 'without a name'} at {shown(self._origin)}>"


def takes_arguments(function: Callable[..., object]) -> bool:
    """Whether it cannot be called without any."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin that does not tell
        return False
    return False


DAY = timedelta(days=1)


def when(answer: Callable[[], object] | bool) -> Filter:
    """Ticks are taken while it says yes. Raises ValueError: it cannot be asked."""
    return Filter(*_asked(answer, "when"), foreign=callable(answer))


def skip(answer: Callable[[], object] | bool) -> Filter:
    """Ticks are taken while it says no. Raises ValueError: it cannot be asked."""
    asks, why = _asked(answer, "skip")
    return Filter(lambda at: not asks(at), why, foreign=callable(answer))


def _asked(answer: Callable[[], object] | bool, word: str) -> tuple[Callable[[float], object], str]:
    why = f"{word}({called(answer)}) said {'no' if word == 'when' else 'yes'}"
    if isinstance(answer, bool):
        return lambda at: answer, why
    asks = answer  # a bool no more, which mypy forgets in a lambda
    if not callable(asks):
        raise ValueError(f"{word}({answer!r}) cannot be asked: give a function without arguments, or True or False")
    if inspect.iscoroutinefunction(asks):
        raise ValueError(f"{word}({called(answer)}) is async, and would always be true: give a def")
    return lambda at: asks(), why


def between(start: time, end: time, zone: str) -> Filter:
    """Both ends count; an end before its start is one of the next day. zone: whose clocks are meant."""
    return Filter(
        lambda at: within(at, start, end, zone),
        f"outside of {start:%H:%M}-{end:%H:%M}",
        shut_until=lambda at: comes(start, at, zone) - 0.001,
    )


def unless_between(start: time, end: time, zone: str) -> Filter:
    return Filter(
        lambda at: not within(at, start, end, zone),
        f"within {start:%H:%M}-{end:%H:%M}",
        shut_until=lambda at: comes(end, at, zone),
    )


def within(at: float, start: time, end: time, zone: str) -> bool:
    now = datetime.fromtimestamp(at, zone_of(zone)).time()
    return start <= now <= end if start <= end else now >= start or now <= end


def comes(hour: time, at: float, zone: str) -> float:
    """When clocks show this time of the day next, not earlier than `at`. Where a change of the clock comes first: the moment
    before it, as behind it the hours are others."""
    wall = datetime.fromtimestamp(at, zone_of(zone))
    found = at + ((datetime.combine(wall, hour) - wall.replace(tzinfo=None)) % DAY).total_seconds()
    if ahead(found, zone) == ahead(at, zone):
        return found
    before, behind = at, found
    while behind - before > 0.001:
        middle = (before + behind) / 2
        before, behind = (middle, behind) if ahead(middle, zone) == ahead(at, zone) else (before, middle)
    return before


def ahead(at: float, zone: str) -> timedelta | None:
    """Of UTC, at that moment."""
    return datetime.fromtimestamp(at, zone_of(zone)).utcoffset()
