"""What happens to jobs, entries, locks and workers, as frozen structs; listeners.py calls what `@app.on(JobFailed)` adds.

The names are Laravel's (Queue/Events of 8 and 13), with JobCrashed, JobHandedBack and LeaseLost added. The worker and the
bus emit; an event is made only where somebody listens (`has`). An app's own events derive from Event and go through
app.emit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, dataclass_transform

import msgspec

if TYPE_CHECKING:
    from qd.bus.running import RunningJob


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
