"""One entry of the schedule as the scheduler takes it: frozen facts, checked when they were declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from qd.bus.chain import Chain
from qd.jobs import Call, Plan
from qd.schedule.timing import Timing

if TYPE_CHECKING:
    from qd.bus.parcel import Parcel
    from qd.bus.send import Send

Missed = Literal["skip", "once", "all"]
Act = Callable[[], object]


class JobTask(msgspec.Struct, frozen=True):
    """Send this job: its run is a worker's business."""

    call: Call[Any]

    def parcel(self) -> Parcel:
        """The payload of one tick, a new one each time. Raises what dispatch raises before it sends."""
        if isinstance(self.call, Chain):
            return self.call._parcel()
        sender, plan, data = self.call._to_send()
        return cast("Send", sender).parcel(plan, data)

    def early(self, at: float) -> Parcel | None:
        """The payload of a tick that is yet to come, unix seconds. None: code of the app's may have a part in it."""
        if type(self.call) is not Call:
            return None
        sender, plan, data = self.call._to_send()
        return cast("Send", sender).parcel(plan, data, now=at)

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
