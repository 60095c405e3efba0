"""The events of jobs, schedule entries, locks and workers as frozen structs, and the listeners that receive them.

    emit(JobFailed(...))  ->  every function added by @app.on(JobFailed), or for a base class of it

The names are Laravel's (Queue/Events of 8 and 13), with JobCrashed, JobHandedBack and LeaseLost added. The worker, the
scheduler and dispatch/ create an event only if it has a listener (`has`). An app's own events derive from Event.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, dataclass_transform

import msgspec

from qd.arguments.parameters import check_callable, named
from qd.errors import DeclarationError, EndJob, Settled

if TYPE_CHECKING:
    from qd.jobs.context import RunningJob


@dataclass_transform(frozen_default=True)
class Event(msgspec.Struct, frozen=True):
    """The base class; a listener of Event receives every event. Its fields are its positional arguments."""


# -- sending. delay: seconds, None for a job that is due now; jobs sent by push_raw have no id and no name


class _Sent(Event, frozen=True):
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
    """The job was not sent because a job with the same unique name is waiting or running."""

    connection: str
    queue: str
    name: str
    unique: str


class QueueFailedOver(Event, frozen=True):
    """`connection` of a failover list failed to accept a job, and the next connection accepted it."""

    connection: str
    error: BaseException


class JobRetryRequested(Event, frozen=True):
    """A failed job goes back to its queue. id: of the job; payload: as it was stored."""

    connection: str
    queue: str
    name: str | None
    id: str
    payload: bytes


# -- running jobs, in the order in which they are emitted


class _OfWorker(Event, frozen=True):
    connection: str
    queues: tuple[str, ...]


class Looping(_OfWorker, frozen=True):
    """A worker is about to look for a job. If a listener returns False, the worker idles for this turn."""


class JobPopping(_OfWorker, frozen=True):
    """A worker queries its queues for a job."""


class _OfJob(Event, frozen=True):
    job: RunningJob


class _OfJobWithError(_OfJob, frozen=True):
    error: BaseException


class JobPopped(_OfJob, frozen=True):
    """A worker has reserved a job."""


class JobProcessing(_OfJob, frozen=True):
    """An attempt begins."""


class JobProcessed(_OfJob, frozen=True):
    """An attempt succeeded."""


class JobExceptionOccurred(_OfJobWithError, frozen=True):
    """An attempt raised an error. JobReleasedAfterException or JobFailed follows."""


class JobReleased(_OfJob, frozen=True):
    """The job or a middleware released it for `delay` seconds. reason: a text, or ""."""

    delay: float
    reason: str = ""


class JobReleasedAfterException(_OfJob, frozen=True):
    """The job goes back to its queue for `delay` seconds after an error or a timeout."""

    delay: float


class JobFailed(_OfJobWithError, frozen=True):
    """The job has failed and will not be retried."""


class JobTimedOut(_OfJob, frozen=True):
    """The attempt ran longer than its timeout."""


class JobCrashed(_OfJob, frozen=True):
    """The process of the previous attempt died before it settled the job. crashes: the number over all attempts."""

    crashes: int


class JobHandedBack(_OfJob, frozen=True):
    """The job goes back to its queue unfinished because the worker stops. The attempt does not count."""


class JobCancelled(_OfJob, frozen=True):
    """The job was cancelled while it ran. It is dropped and not retried."""


class LeaseLost(_OfJob, frozen=True):
    """The worker lost its reservation: the job may have run elsewhere."""


class JobAttempted(_OfJob, frozen=True):
    """The attempt has ended; always its last event. error: None if it succeeded."""

    error: BaseException | None


# -- the schedule. task: the entry's name; at: the tick's unix seconds. The scheduler that took the tick emits them


class _OfRun(Event, frozen=True):
    task: str
    at: float


class ScheduledTaskStarting(_OfRun, frozen=True):
    """A scheduler took a tick, and is about to send the job or to run the function or command."""


class ScheduledTaskFinished(_OfRun, frozen=True):
    """The job was sent, the function returned, or the command exited with 0. runtime: seconds."""

    runtime: float


class ScheduledTaskSkipped(_OfRun, frozen=True):
    """Nothing ran at this tick. reason: a text."""

    reason: str


class ScheduledTaskFailed(_OfRun, frozen=True):
    """The function raised, the command exited with a code other than 0, or the job could not be created. error: a text;
    code: the exit code, below 0 a signal, or None."""

    runtime: float
    error: str
    code: int | None = None


class ScheduledBackgroundTaskFinished(_OfRun, frozen=True):
    """A background entry has ended. Follows ScheduledTaskFinished or ScheduledTaskFailed."""

    runtime: float
    code: int | None


# -- locks


class LockLost(Event, frozen=True):
    """A lock of app.lock was lost before this process released it. token: its fencing token. Emitted in the thread that
    noticed the loss."""

    name: str
    token: int


# -- workers


class WorkerIdle(_OfWorker, frozen=True):
    """A worker found no job and waits."""


class WorkerStarting(Event, frozen=True):
    """A worker process is ready for jobs."""

    connection: str = ""
    queues: tuple[str, ...] = ()


class WorkerInterrupted(Event, frozen=True):
    """The worker was requested to stop. Emitted once, as soon as it runs no job."""


class WorkerStopping(Event, frozen=True):
    """A worker process exits with this reason and exit code. memory: bytes in use."""

    reason: str
    code: int
    connection: str = ""
    queues: tuple[str, ...] = ()
    jobs: int = 0
    memory: int = 0


class WorkerPausing(Event, frozen=True):
    """The worker reserves no jobs until it is resumed."""


class WorkerResuming(Event, frozen=True):
    """The worker reserves jobs again."""


Listener = Callable[[Any], object]


class Listeners:
    """The listeners of an app. A listener of a base class receives subclasses too, in the order of `add`. worker: the pid
    of this worker process; 0 in a producer."""

    def __init__(self) -> None:
        self.worker = 0
        self._added: list[tuple[type[Event], Listener]] = []
        self._found: dict[type[Event], tuple[Listener, ...]] = {}

    def add(self, event: type[Event], listener: Listener) -> None:
        check_event(event)
        check_callable(f"the listener {named(listener)}", listener, (event,), f"one {event.__name__}")
        self._added.append((event, listener))
        self._found.clear()

    def of(self, event: type[Event]) -> tuple[Listener, ...]:
        found = self._found.get(event)
        if found is None:
            found = tuple([listener for kind, listener in self._added if issubclass(event, kind)])
            self._found[event] = found
        return found

    def has(self, event: type[Event]) -> bool:
        found = self._found.get(event)  # not of(): jobs call this six times
        return bool(self.of(event) if found is None else found)

    def emit(self, event: Event) -> bool:
        """Call every listener. Returns False if one of them returned False (only Looping uses the result). An error in a
        listener is logged. EndJob and Settled pass through; so do exceptions that are no Exception in a producer, where
        Ctrl-C is meant for the program, and in a fork of a worker by a listener, which must end."""
        agreed = True
        for listener in self.of(type(event)):
            try:
                agreed = listener(event) is not False and agreed
            except (EndJob, Settled):
                raise
            except BaseException as error:
                if not isinstance(error, Exception) and os.getpid() != self.worker:
                    raise
                import logging  # `import qd` does not pay for it

                kind = type(event).__name__
                logging.getLogger("qd.events").exception("the listener %s of %s raised", named(listener), kind)
        return agreed


def check_event(event: object) -> None:
    """Raises DeclarationError."""
    if not (isinstance(event, type) and issubclass(event, Event)):
        known = "one of those in qd.events, or a class derived from qd.events.Event"
        raise DeclarationError(f"{event!r} is not an event ({known})")
