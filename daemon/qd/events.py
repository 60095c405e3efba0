"""What happens to jobs, entries, locks and workers, as frozen facts; listeners.py has those that `@app.on(JobFailed)` adds.

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


class QueueFailedOver(Event, frozen=True):
    """A connection of failover does not take jobs, and the next one took them. connection: the one that failed."""

    connection: str
    error: BaseException


class JobRetryRequested(Event, frozen=True):
    """A failed job goes back to its queue. id: the job's; payload: as it was kept."""

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
