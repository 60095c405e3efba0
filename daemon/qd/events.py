"""What happens to jobs and workers, as frozen facts, and the listeners that `@app.on(JobFailed)` adds.

The names are Laravel's (Queue/Events), with JobCrashed, JobHandedBack and LeaseLost added. The worker and the bus emit;
an event is made only where somebody listens (`has`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from qd.errors import DeclarationError

if TYPE_CHECKING:
    from qd.bus.running import RunningJob


class Event(msgspec.Struct, frozen=True):
    """The root: a listener of Event hears all of them."""


class JobQueued(Event, frozen=True):
    """A producer has sent a job. delay: seconds, None for at once; a job sent by push_raw has no id and no name."""

    connection: str
    queue: str
    name: str | None
    id: str | None
    payload: bytes
    delay: float | None


class Looping(Event, frozen=True):
    """A worker is about to look for a job; a listener that returns False makes this turn an idle one."""

    connection: str
    queues: tuple[str, ...]


class JobProcessing(Event, frozen=True):
    """An attempt begins."""

    job: RunningJob


class JobProcessed(Event, frozen=True):
    """An attempt ended well."""

    job: RunningJob


class JobExceptionOccurred(Event, frozen=True):
    """An attempt ended with an error; whether it is tried again is told by JobReleased or JobFailed."""

    job: RunningJob
    error: BaseException


class JobReleased(Event, frozen=True):
    """The job goes back to its queue, for `delay` seconds."""

    job: RunningJob
    delay: float


class JobFailed(Event, frozen=True):
    """The job has failed for good."""

    job: RunningJob
    error: BaseException


class JobTimedOut(Event, frozen=True):
    """The attempt ran longer than its timeout."""

    job: RunningJob


class JobCrashed(Event, frozen=True):
    """Attempts before this one ended without an answer: their process was killed. crashes: how many in all."""

    job: RunningJob
    crashes: int


class JobHandedBack(Event, frozen=True):
    """The job goes back to its queue unfinished, because the worker stops; nothing is spent."""

    job: RunningJob


class LeaseLost(Event, frozen=True):
    """The reservation is gone: the job may have run elsewhere."""

    job: RunningJob


class WorkerStarting(Event, frozen=True):
    """A worker process is ready to take jobs."""


class WorkerStopping(Event, frozen=True):
    """A worker process leaves, with this reason and exit code."""

    reason: str
    code: int


class WorkerPausing(Event, frozen=True):
    """The worker takes no more jobs until it is told to resume."""


class WorkerResuming(Event, frozen=True):
    """The worker takes jobs again."""


Listener = Callable[[Any], object]


class Listeners:
    """Who hears what. A listener of a base class hears its descendants too; the order is that of `add`."""

    def __init__(self) -> None:
        self._added: list[tuple[type[Event], Listener]] = []
        self._found: dict[type[Event], tuple[Listener, ...]] = {}

    def add(self, event: type[Event], listener: Listener) -> None:
        if not (isinstance(event, type) and issubclass(event, Event)):
            raise DeclarationError(f"{event!r} is not an event (one of those in qd.events, such as JobFailed)")
        if inspect.iscoroutinefunction(listener):
            raise DeclarationError(f"the listener {listener.__qualname__} is async and would never run: make it a def")
        self._added.append((event, listener))
        self._found.clear()

    def of(self, event: type[Event]) -> tuple[Listener, ...]:
        found = self._found.get(event)
        if found is None:
            found = tuple([listener for heard, listener in self._added if issubclass(event, heard)])
            self._found[event] = found
        return found

    def has(self, event: type[Event]) -> bool:
        return bool(self.of(event))

    def emit(self, event: Event) -> bool:
        """Tell every listener. False when one of them returned False (only Looping asks).

        A listener that raises is logged and harms nothing; what ends a job from outside (EndJob, Settled) goes through.
        """
        agreed = True
        for listener in self.of(type(event)):
            try:
                agreed = listener(event) is not False and agreed
            except Exception:
                complain(listener, event)
        return agreed


def complain(listener: Listener, event: Event) -> None:
    import logging  # not on the way of `import qd`

    name = getattr(listener, "__qualname__", repr(listener))
    logging.getLogger("qd.events").exception("the listener %s of %s raised", name, type(event).__name__)
