"""What happens to jobs, entries, locks and workers, as frozen structs; listeners.py calls what `@app.on(JobFailed)` adds.

The names are Laravel's (Queue/Events of 8 and 13), with JobCrashed, JobHandedBack and LeaseLost added. The worker and the
bus emit; an event is made only where somebody listens (`has`). An app's own events derive from Event and go through
app.emit.

Who hears of an event: what `@app.on(JobFailed)` adds. The worker, the scheduler and the bus emit.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, dataclass_transform

import msgspec

from qd.errors import DeclarationError, EndJob, Settled

if TYPE_CHECKING:
    from qd.jobs.context import RunningJob


@dataclass_transform(frozen_default=True)
class Event(msgspec.Struct, frozen=True):
    """The root: a listener of Event hears all of them. Its fields are its arguments, in their order."""


# -- sending. delay: seconds, None for a job that is due at once; a job sent by push_raw has no id and no name


class _Sent(Event, frozen=True):
    """A job on its way to a queue."""

    connection: str
    queue: str
    name: str | None
    id: str | None
    payload: bytes
    delay: float | None


class JobQueueing(_Sent, frozen=True):
    """A producer is about to send a job."""


class JobQueued(_Sent, frozen=True):
    """A producer has sent a job."""


class UniqueJobSkipped(Event, frozen=True):
    """The job was not sent, because a job under the same unique name is waiting or running."""

    connection: str
    queue: str
    name: str
    unique: str


class QueueFailedOver(Event, frozen=True):
    """A connection of a failover list failed to take a job, and the next one took it. connection: the one that failed."""

    connection: str
    error: BaseException


class JobRetryRequested(Event, frozen=True):
    """A failed job goes back to its queue. id: the job's; payload: as it was kept."""

    connection: str
    queue: str
    name: str | None
    id: str
    payload: bytes


# -- running jobs, in the order in which they are emitted


class _OfWorker(Event, frozen=True):
    """A worker and the queues that it serves."""

    connection: str
    queues: tuple[str, ...]


class Looping(_OfWorker, frozen=True):
    """A worker is about to look for a job; if a listener returns False, this turn is an idle one."""


class JobPopping(_OfWorker, frozen=True):
    """A worker asks its queues for a job."""


class _OfJob(Event, frozen=True):
    """An attempt of a job on a worker."""

    job: RunningJob


class _OfJobWithError(_OfJob, frozen=True):
    """An attempt that ended with an error."""

    error: BaseException


class JobPopped(_OfJob, frozen=True):
    """A worker has reserved a job."""


class JobProcessing(_OfJob, frozen=True):
    """An attempt begins."""


class JobProcessed(_OfJob, frozen=True):
    """An attempt succeeded."""


class JobExceptionOccurred(_OfJobWithError, frozen=True):
    """An attempt raised an error; JobReleasedAfterException or JobFailed reports what becomes of the job."""


class JobReleased(_OfJob, frozen=True):
    """The job, or a middleware, has put it back into its queue, for `delay` seconds; reason: why, in words, or ""."""

    delay: float
    reason: str = ""


class JobReleasedAfterException(_OfJob, frozen=True):
    """The job goes back into its queue after an error or a timeout, for `delay` seconds."""

    delay: float


class JobFailed(_OfJobWithError, frozen=True):
    """The job has failed and is not tried again."""


class JobTimedOut(_OfJob, frozen=True):
    """The attempt ran longer than its timeout."""


class JobCrashed(_OfJob, frozen=True):
    """The processes of earlier attempts were killed before they settled the job. crashes: how many, of all attempts."""

    crashes: int


class JobHandedBack(_OfJob, frozen=True):
    """The job goes back to its queue unfinished, because the worker stops; the attempt does not count."""


class JobCancelled(_OfJob, frozen=True):
    """The job was cancelled while it ran: it is dropped, and not tried again."""


class LeaseLost(_OfJob, frozen=True):
    """The reservation is gone: the job may have run elsewhere."""


class JobAttempted(_OfJob, frozen=True):
    """The attempt is over, however it ended; always the last of its events. error: None if it succeeded."""

    error: BaseException | None


# -- the schedule. task: the entry's name; at: the tick's unix seconds. The scheduler that has taken the tick emits them


class _OfRun(Event, frozen=True):
    """A tick of an entry."""

    task: str
    at: float


class ScheduledTaskStarting(_OfRun, frozen=True):
    """A tick was taken: its job is sent, or its function or command is about to run."""


class ScheduledTaskFinished(_OfRun, frozen=True):
    """The job was sent; the function returned; the command ended with 0. runtime: seconds."""

    runtime: float


class ScheduledTaskSkipped(_OfRun, frozen=True):
    """Nothing was run at this tick; reason: why, in words."""

    reason: str


class ScheduledTaskFailed(_OfRun, frozen=True):
    """The function raised, the command exited with another code than 0 or was killed, or the job could not be made.

    error: in words; code: the exit code, below 0 a signal, None if there is none.
    """

    runtime: float
    error: str
    code: int | None = None


class ScheduledBackgroundTaskFinished(_OfRun, frozen=True):
    """An entry that runs in the background has ended, well or not; follows Finished or Failed."""

    runtime: float
    code: int | None


# -- locks


class LockLost(Event, frozen=True):
    """A lock of app.lock that this process held was lost before it was released. token: its fencing token.

    Emitted in the thread that noticed it.
    """

    name: str
    token: int


# -- workers


class WorkerIdle(_OfWorker, frozen=True):
    """A worker has found no job, and waits for one."""


class WorkerStarting(Event, frozen=True):
    """A worker process is ready to take jobs."""

    connection: str = ""
    queues: tuple[str, ...] = ()


class WorkerInterrupted(Event, frozen=True):
    """The worker was asked to stop. Emitted once, as soon as it has no job in hand."""


class WorkerStopping(Event, frozen=True):
    """A worker process exits, with this reason and exit code. memory: bytes in use."""

    reason: str
    code: int
    connection: str = ""
    queues: tuple[str, ...] = ()
    jobs: int = 0
    memory: int = 0


class WorkerPausing(Event, frozen=True):
    """The worker takes no more jobs until it is resumed."""


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
            f"{event!r} is not an event (one of those in qd.events, or a class derived from qd.events.Event)"
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
