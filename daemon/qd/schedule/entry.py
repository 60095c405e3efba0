"""One entry of the schedule as the scheduler takes it: frozen facts, checked when they were declared.

The next tick that an entry's own hours let through. What the user's filters will say is not asked. Pure.

The name that an entry has by itself: the same on every host, and short.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from qd.dispatch.chain import Chain
from qd.jobs.job import Call
from qd.jobs.plan import Plan
from qd.jobs.registry import Declared
from qd.redaction import mask_urls
from qd.schedule.timing import Timing

if TYPE_CHECKING:
    from qd.dispatch.dispatcher import Dispatcher
    from qd.dispatch.route import Message


Missed = Literal["skip", "once", "all"]
Act = Callable[[], object]


class JobTask(msgspec.Struct, frozen=True):
    """Send this job: its run is a worker's business."""

    call: Call[Any]

    def parcel(self) -> Message:
        """The payload of one tick, a new one each time. Raises what dispatch raises before it sends."""
        if isinstance(self.call, Chain):
            return self.call._parcel()
        sender, plan, data = self.call._to_send()
        return cast("Dispatcher", sender).parcel(plan, data)

    def early(self, at: float) -> Message | None:
        """The payload of a tick that is yet to come, unix seconds. None: code of the app's may have a part in it."""
        if type(self.call) is not Call:
            return None
        sender, plan, data = self.call._to_send()
        return cast("Dispatcher", sender).parcel(plan, data, now=at)

    @property
    def plan(self) -> Plan:
        """How it is sent; of a chain its first job."""
        return self.call._members[0].plan if isinstance(self.call, Chain) else self.call._to_send()[1]


class CallTask(msgspec.Struct, frozen=True):
    """Call a function without arguments, sync or async, in a process of its own."""

    function: Act


class ShellTask(msgspec.Struct, frozen=True):
    """Have /bin/sh run this line."""

    line: str


class QdTask(msgspec.Struct, frozen=True):
    """Run a command of qd's, as these words: ("failed", "forget", "--older-than", "30d")."""

    words: tuple[str, ...]


Task = JobTask | CallTask | ShellTask | QdTask


class Filter(msgspec.Struct, frozen=True):
    """Whether a tick is taken. why: what is told of a tick that was not ("outside of 8:00-17:00"). passes: called with the
    tick's unix seconds; it may be the user's code, and raise, or hang. shut_until: of a tick that does not pass, a moment up
    to which none will; None: nobody knows."""

    passes: Callable[[float], object]
    why: str
    foreign: bool = False  # the user's code
    shut_until: Callable[[float], float] | None = None


class Entry(msgspec.Struct, frozen=True):
    """name: one of its own among all entries of the app, the same on all hosts. timeout: seconds, 0 for none.
    origin: file and line that declared it."""

    name: str
    task: Task
    timing: Timing
    missed: Missed = "skip"
    alone: bool = False  # without_overlapping
    every_host: bool = False
    background: bool = False
    in_maintenance: bool = False
    environments: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    before: tuple[Act, ...] = ()
    after: tuple[Act, ...] = ()
    on_success: tuple[Act, ...] = ()
    on_failure: tuple[Act, ...] = ()
    output: Path | None = None
    append: bool = False
    timeout: float = 0.0
    origin: tuple[str, int] = ("", 0)

    @property
    def kind(self) -> str:
        """job, call, shell or qd."""
        return KINDS[type(self.task)]

    def runs_in(self, environment: str) -> bool:
        """environment: Settings.env, what QD_ENV says. Without one, only the entries that name none run."""
        return not self.environments or environment in self.environments


def meant_for(environment: str, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Those that run there, in their order."""
    return tuple(entry for entry in entries if entry.runs_in(environment))


KINDS: dict[type[object], str] = {JobTask: "job", CallTask: "call", ShellTask: "shell", QdTask: "qd"}


YEAR = 366 * 86400.0


def next_of(entry: Entry, now: float) -> float | None:
    """Unix seconds. None: it never comes again, or no tick of a year passes qd's own filters."""
    return passing(entry, now, [each for each in entry.filters if not each.foreign])


def closed(entry: Entry, now: float) -> str:
    """What its ticks of a year are told by its hours, where none of them comes: "outside of 23:00-23:30". Else ""."""
    hours = [each for each in entry.filters if each.shut_until is not None]
    due = entry.timing.next_after(now)
    if not hours or due is None or passing(entry, now, hours) is not None:
        return ""
    return next(each.why for each in hours if not each.passes(due))


def passing(entry: Entry, now: float, filters: Iterable[Filter]) -> float | None:
    """Goes from tick to tick, and over those hours of which a filter knows that it says no."""
    at = entry.timing.next_after(now)
    end = (at or now) + YEAR
    while at is not None and at <= end:
        refuses = next((each for each in filters if not each.passes(at)), None)
        if refuses is None:
            return at
        if refuses.shut_until is None:  # when(False)
            return None
        at = entry.timing.next_after(max(at, refuses.shut_until(at)))
    return None


LONGEST = 64  # letters
PLAIN = re.compile(r"[\w@.:/+-]+")


def of_call(declared: Declared, data: bytes) -> str:
    """`report(7)`: the job, and what it is given. Arguments stand by place, or by name where those before are left out."""
    given = msgspec.json.decode(data) if data else {}
    if not isinstance(given, dict):
        return short(f"{declared.name}({plain(given)})")
    said, by_place = [], True
    for parameter in declared.signature.parameters:
        by_place = by_place and parameter.positional and parameter.name in given
        if by_place:
            said.append(plain(given.pop(parameter.name)))
    said += [f"{name}={plain(value)}" for name, value in given.items()]
    return short(f"{declared.name}({', '.join(said)})" if said else declared.name)


def of_command(line: str) -> str:
    return short(" ".join(line.split()))


def plain(value: object) -> str:
    """JSON, and a text that cannot be mistaken for anything else as it is."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode()


def short(name: str) -> str:
    """Without passwords of urls; one that is too long is cut, with a few letters that tell it from others like it."""
    clean = "".join(letter if letter.isprintable() else " " for letter in mask_urls(name))
    if len(clean) <= LONGEST:
        return clean
    return f"{clean[: LONGEST - 9]}~{hashlib.sha1(clean.encode()).hexdigest()[:8]}"


def called(function: object) -> str:
    """What a function is called in a message."""
    if isinstance(function, partial):
        return f"a partial of {called(function.func)}"
    name: str = getattr(function, "__qualname__", "") or (
        type(function).__qualname__ if callable(function) else repr(function)
    )
    return name.rpartition("<locals>.")[2].replace("<lambda>", "a lambda")
