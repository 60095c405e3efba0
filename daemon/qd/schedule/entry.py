"""`Entry`: one entry of the schedule, frozen and checked when it was declared; its default name, and its next tick. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from qd.dispatch.composite import Chain
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
    """Send this job, which a worker runs."""

    call: Call[Any]

    def message(self) -> Message:
        """The payload of one tick, new each time. Raises what dispatch() raises before it sends."""
        if isinstance(self.call, Chain):
            return self.call._message()
        sender, plan, data = self.call._to_send()
        return cast("Dispatcher", sender).prepare(plan, data)

    def early(self, at: float) -> Message | None:
        """The payload of a future tick, unix seconds. None if the app's own code takes part in making it."""
        if type(self.call) is not Call:
            return None
        sender, plan, data = self.call._to_send()
        return cast("Dispatcher", sender).prepare(plan, data, now=at)

    @property
    def plan(self) -> Plan:
        """How it is sent; for a chain, its first job."""
        return self.call._members[0].plan if isinstance(self.call, Chain) else self.call._to_send()[1]


class CallTask(msgspec.Struct, frozen=True):
    """Call a function without arguments, sync or async, in a separate process."""

    function: Act


class ShellTask(msgspec.Struct, frozen=True):
    """Have /bin/sh run this line."""

    line: str


class QdTask(msgspec.Struct, frozen=True):
    """Run the qd command with these arguments: ("failed", "forget", "--older-than", "30d")."""

    words: tuple[str, ...]


Task = JobTask | CallTask | ShellTask | QdTask


class Filter(msgspec.Struct, frozen=True):
    """Whether a tick is taken.

    passes: called with the tick, unix seconds; may be user code, and raise or hang. why: reported when a tick does not pass
    ("outside of 8:00-17:00"). foreign: it is user code. shut_until: called with a tick that does not pass; a time up to
    which no other will. None if that is unknown.
    """

    passes: Callable[[float], object]
    why: str
    foreign: bool = False
    shut_until: Callable[[float], float] | None = None


class Entry(msgspec.Struct, frozen=True):
    """name: unique in the app, the same on all hosts. timeout: seconds, 0 for none. origin: file and line of the
    declaration."""

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
        """environment: Settings.env, from QD_ENV. Without one, only entries that name no environment run."""
        return not self.environments or environment in self.environments


def meant_for(environment: str, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry.runs_in(environment))


KINDS: dict[type[object], str] = {JobTask: "job", CallTask: "call", ShellTask: "shell", QdTask: "qd"}
YEAR = 366 * 86400.0  # seconds
LONGEST = 64  # characters of a default name
PLAIN = re.compile(r"[\w@.:/+-]+")


def next_of(entry: Entry, now: float) -> float | None:
    """The next tick, unix seconds, by qd's own filters. None if none comes, or none passes within a year."""
    return passing(entry, now, [each for each in entry.filters if not each.foreign])


def closed(entry: Entry, now: float) -> str:
    """Why no tick of the next year passes its hours ("outside of 23:00-23:30"), or ""."""
    hours = [each for each in entry.filters if each.shut_until is not None]
    due = entry.timing.next_after(now)
    if not hours or due is None or passing(entry, now, hours) is not None:
        return ""
    return next(each.why for each in hours if not each.passes(due))


def passing(entry: Entry, now: float, filters: Iterable[Filter]) -> float | None:
    """The first tick that passes, within a year. Jumps over times at which a filter is known to reject all."""
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


def of_call(declared: Declared, data: bytes) -> str:
    """`report(7)`: the job with its arguments, positional up to the first one that is left out."""
    given = msgspec.json.decode(data) if data else {}
    if not isinstance(given, dict):
        return short(f"{declared.name}({plain(given)})")
    words, positional = [], True
    for parameter in declared.signature.parameters:
        positional = positional and parameter.positional and parameter.name in given
        if positional:
            words.append(plain(given.pop(parameter.name)))
    words += [f"{name}={plain(value)}" for name, value in given.items()]
    return short(f"{declared.name}({', '.join(words)})" if words else declared.name)


def of_command(line: str) -> str:
    return short(" ".join(line.split()))


def plain(value: object) -> str:
    """Strings without special characters as they are, anything else as JSON."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode()


def short(name: str) -> str:
    """Passwords in urls are masked. A long name is cut, with a hash to keep it unique."""
    clean = "".join(letter if letter.isprintable() else " " for letter in mask_urls(name))
    if len(clean) <= LONGEST:
        return clean
    return f"{clean[: LONGEST - 9]}~{hashlib.sha1(clean.encode()).hexdigest()[:8]}"


def called(function: object) -> str:
    """The name of a function, for messages."""
    if isinstance(function, partial):
        return f"a partial of {called(function.func)}"
    name: str = getattr(function, "__qualname__", "") or (
        type(function).__qualname__ if callable(function) else repr(function)
    )
    return name.rpartition("<locals>.")[2].replace("<lambda>", "a lambda")
