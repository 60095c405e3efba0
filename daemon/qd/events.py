"""What happens to jobs and workers, as frozen facts, and the listeners that `@app.on(JobFailed)` adds.

The names are Laravel's (Queue/Events of 8 and 13), with JobCrashed, JobHandedBack and LeaseLost added. The worker and the
bus emit; an event is made only where somebody listens (`has`). An app's own events derive from Event and go through
app.emit.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, dataclass_transform

import msgspec

from qd.errors import DeclarationError, EndJob, Settled

if TYPE_CHECKING:
    from qd.bus.running import RunningJob


@dataclass_transform(frozen_default=True)
class Event(msgspec.Struct, frozen=True):
    """The root: a listener of Event hears all of them. Its fields are its arguments, in their order."""


# -- where jobs are sent. delay: seconds, None for at once; a job sent by push_raw has no id and no name


class JobQueueing(Event, frozen=True):
    """A producer is about to send a job."""

    connection: str
    queue: str
    name: str | None
    id: str | None
    payload: bytes
    delay: float | None


class JobQueued(Event, frozen=True):
    """A producer has sent a job."""

    connection: str
    queue: str
    name: str | None
    id: str | None
    payload: bytes
    delay: float | None


class UniqueJobSkipped(Event, frozen=True):
    """Nothing was sent: a job under the same unique name is waiting or running."""

    connection: str
    queue: str
    name: str
    unique: str


class JobRetryRequested(Event, frozen=True):
    """A failed job goes back to its queue. payload: as it was kept."""

    connection: str
    queue: str
    name: str | None
    id: str
    payload: bytes


# -- where jobs run, in the order in which they are told


class Looping(Event, frozen=True):
    """A worker is about to look for a job; a listener that returns False makes this turn an idle one."""

    connection: str
    queues: tuple[str, ...]


class JobPopping(Event, frozen=True):
    """A worker asks its queues for a job."""

    connection: str
    queues: tuple[str, ...]


class JobPopped(Event, frozen=True):
    """A worker has taken a job."""

    job: RunningJob


class JobProcessing(Event, frozen=True):
    """An attempt begins."""

    job: RunningJob


class JobProcessed(Event, frozen=True):
    """An attempt ended well."""

    job: RunningJob


class JobExceptionOccurred(Event, frozen=True):
    """An attempt ended with an error; what comes of it is told by JobReleasedAfterException or JobFailed."""

    job: RunningJob
    error: BaseException


class JobReleased(Event, frozen=True):
    """The job, or a middleware, has put it back into its queue, for `delay` seconds; reason: why, in words, or ""."""

    job: RunningJob
    delay: float
    reason: str = ""


class JobReleasedAfterException(Event, frozen=True):
    """The job goes back into its queue after an error or a timeout, for `delay` seconds."""

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


class JobCancelled(Event, frozen=True):
    """Somebody has cancelled the job while it ran: it is dropped, and not tried again."""

    job: RunningJob


class LeaseLost(Event, frozen=True):
    """The reservation is gone: the job may have run elsewhere."""

    job: RunningJob


class JobAttempted(Event, frozen=True):
    """The attempt is over, however it ended; always the last of its events. error: None when it ended well."""

    job: RunningJob
    error: BaseException | None


# -- the schedule: task is the entry's name, at the tick's unix seconds; told by the scheduler that has taken the tick


class ScheduledTaskStarting(Event, frozen=True):
    """A tick was taken: its job is sent, its function or command is about to run."""

    task: str
    at: float


class ScheduledTaskFinished(Event, frozen=True):
    """The job was sent; the function returned; the command ended with 0. runtime: seconds."""

    task: str
    at: float
    runtime: float


class ScheduledTaskSkipped(Event, frozen=True):
    """Nothing was run at this tick; reason: why, in words."""

    task: str
    at: float
    reason: str


class ScheduledTaskFailed(Event, frozen=True):
    """The function raised, the command ended with another code than 0 or was killed, or the job could not be made. error: in
    words; code: the exit code, below 0 a signal, None where there is none."""

    task: str
    at: float
    runtime: float
    error: str
    code: int | None = None


class ScheduledBackgroundTaskFinished(Event, frozen=True):
    """An entry that runs in the background has ended, well or not; after Finished or Failed."""

    task: str
    at: float
    runtime: float
    code: int | None


# -- locks


class LockLost(Event, frozen=True):
    """A lock of app.lock was held in this process and is not any more, without having been released; told in the thread
    that has found out. token: its fencing token."""

    name: str
    token: int


# -- workers


class WorkerIdle(Event, frozen=True):
    """A worker has found no job, and waits for one."""

    connection: str
    queues: tuple[str, ...]


class WorkerStarting(Event, frozen=True):
    """A worker process is ready to take jobs."""

    connection: str = ""
    queues: tuple[str, ...] = ()


class WorkerInterrupted(Event, frozen=True):
    """The worker was asked to stop: told once, as soon as it has no job in hand."""


class WorkerStopping(Event, frozen=True):
    """A worker process leaves, with this reason and exit code. memory: bytes in use."""

    reason: str
    code: int
    connection: str = ""
    queues: tuple[str, ...] = ()
    jobs: int = 0
    memory: int = 0


class WorkerPausing(Event, frozen=True):
    """The worker takes no more jobs until it is told to resume."""


class WorkerResuming(Event, frozen=True):
    """The worker takes jobs again."""


Listener = Callable[[Any], object]


class Listeners:
    """Who hears what. A listener of a base class hears its descendants too; the order is that of `add`.

    worker: the pid of the worker that this process is; 0 in a producer.
    """

    def __init__(self) -> None:
        self.worker = 0
        self._added: list[tuple[type[Event], Listener]] = []
        self._found: dict[type[Event], tuple[Listener, ...]] = {}

    def add(self, event: type[Event], listener: Listener) -> None:
        check_event(event)
        check_listener(listener, event)
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

        A listener that raises is logged and harms nothing; what ends a job from outside (EndJob, Settled) goes through. So
        does what is no Exception outside a worker, where Ctrl-C is meant for the program, and in a copy of a worker that a
        listener has forked, which is to end.
        """
        agreed = True
        for listener in self.of(type(event)):
            try:
                agreed = listener(event) is not False and agreed
            except (EndJob, Settled):
                raise
            except BaseException as error:
                if not isinstance(error, Exception) and os.getpid() != self.worker:
                    raise
                complain(listener, event)
        return agreed


def check_event(event: object) -> None:
    """Raises DeclarationError."""
    if not (isinstance(event, type) and issubclass(event, Event)):
        raise DeclarationError(
            f"{event!r} is not an event (one of those in qd.events, or a class derived from qd.Event)"
        )


def check_listener(listener: Listener, event: type[Event]) -> None:
    """Raises DeclarationError: it would never run, or could not be called with one event."""
    name = getattr(listener, "__qualname__", None) or repr(listener)
    if not callable(listener):
        raise DeclarationError(
            f"{listener!r} is no listener of {event.__name__}: write a function that takes the event"
        )
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
        raise DeclarationError(f"the listener {name} is async and would never run: make it a def")
    try:
        inspect.signature(listener).bind(event)
    except TypeError as error:
        raise DeclarationError(f"the listener {name} cannot be called with one {event.__name__}: {error}") from None
    except ValueError:
        pass  # a builtin, which has no signature


def complain(listener: Listener, event: Event) -> None:
    import logging  # not on the way of `import qd`

    name = getattr(listener, "__qualname__", repr(listener))
    logging.getLogger("qd.events").exception("the listener %s of %s raised", name, type(event).__name__)
