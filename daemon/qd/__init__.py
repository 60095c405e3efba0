"""qd: background jobs on Redis, databases, beanstalkd and SQS, in Laravel's queue format.

Names are loaded when they are first used, because every process of the daemon passes through here, and the master must
stay as small as it is: `import qd` loads nothing, `from qd import Qd` what a producer needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.arguments import Carried, Carrier, Given, provided
    from qd.bus.batch import Batch
    from qd.bus.keyed import Keyed
    from qd.bus.named import Queue
    from qd.bus.running import RunningJob, current_job
    from qd.connectors.batches import BatchState
    from qd.errors import (
        ArgumentError,
        BatchFinished,
        DeclarationError,
        JobError,
        JobInterrupted,
        JobTimeout,
        LockError,
        LockTaken,
        ModelGone,
        NoResult,
        NotInJob,
        QdError,
        UnknownBatch,
    )
    from qd.events import (
        Event,
        JobAttempted,
        JobCrashed,
        JobExceptionOccurred,
        JobFailed,
        JobHandedBack,
        JobPopped,
        JobPopping,
        JobProcessed,
        JobProcessing,
        JobQueued,
        JobQueueing,
        JobReleased,
        JobReleasedAfterException,
        JobRetryRequested,
        JobTimedOut,
        Looping,
        QueueFailedOver,
        ScheduledBackgroundTaskFinished,
        ScheduledTaskFailed,
        ScheduledTaskFinished,
        ScheduledTaskSkipped,
        ScheduledTaskStarting,
        UniqueJobSkipped,
        WorkerIdle,
        WorkerInterrupted,
        WorkerPausing,
        WorkerResuming,
        WorkerStarting,
        WorkerStopping,
    )
    from qd.jobs import Call, Declare, Handle, Job, JobFunction, Middleware, NeverSent, Options, Sending, Span
    from qd.locks import Limiter, Lock, Owner
    from qd.schedule import Scheduled
    from qd.testing import Dispatched, Fake

__version__ = "0.1.0"

# LeaseLost, LockLost and JobCancelled are missing on purpose: an event and an error bear that name, so they are asked for
# in qd.events or qd.errors.
_ROOMS = {
    "qd.app": ("Qd",),
    "qd.arguments": ("Carried", "Carrier", "Given", "provided"),
    "qd.bus.keyed": ("Keyed",),
    "qd.bus.batch": ("Batch",),
    "qd.bus.named": ("Queue",),
    "qd.bus.running": ("RunningJob", "current_job"),
    "qd.connectors.batches": ("BatchState",),
    "qd.errors": (
        "ArgumentError",
        "BatchFinished",
        "DeclarationError",
        "JobError",
        "JobInterrupted",
        "JobTimeout",
        "LockError",
        "LockTaken",
        "ModelGone",
        "NoResult",
        "NotInJob",
        "QdError",
        "UnknownBatch",
    ),
    "qd.events": (
        "Event",
        "JobAttempted",
        "JobCrashed",
        "JobExceptionOccurred",
        "JobFailed",
        "JobHandedBack",
        "JobPopped",
        "JobPopping",
        "JobProcessed",
        "JobProcessing",
        "JobQueued",
        "JobQueueing",
        "JobReleased",
        "JobReleasedAfterException",
        "JobRetryRequested",
        "JobTimedOut",
        "Looping",
        "QueueFailedOver",
        "ScheduledBackgroundTaskFinished",
        "ScheduledTaskFailed",
        "ScheduledTaskFinished",
        "ScheduledTaskSkipped",
        "ScheduledTaskStarting",
        "UniqueJobSkipped",
        "WorkerIdle",
        "WorkerInterrupted",
        "WorkerPausing",
        "WorkerResuming",
        "WorkerStarting",
        "WorkerStopping",
    ),
    "qd.jobs": (
        "Call",
        "Declare",
        "Handle",
        "Job",
        "JobFunction",
        "Middleware",
        "NeverSent",
        "Options",
        "Sending",
        "Span",
    ),
    "qd.locks": ("Limiter", "Lock", "Owner"),
    "qd.schedule": ("Scheduled",),
    "qd.testing": ("Dispatched", "Fake"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "ArgumentError",
    "Batch",
    "BatchFinished",
    "BatchState",
    "Call",
    "Carried",
    "Carrier",
    "DeclarationError",
    "Declare",
    "Dispatched",
    "Event",
    "Fake",
    "Given",
    "Handle",
    "Job",
    "JobAttempted",
    "JobCrashed",
    "JobError",
    "JobExceptionOccurred",
    "JobFailed",
    "JobFunction",
    "JobHandedBack",
    "JobInterrupted",
    "JobPopped",
    "JobPopping",
    "JobProcessed",
    "JobProcessing",
    "JobQueued",
    "JobQueueing",
    "JobReleased",
    "JobReleasedAfterException",
    "JobRetryRequested",
    "JobTimedOut",
    "JobTimeout",
    "Keyed",
    "Limiter",
    "Lock",
    "LockError",
    "LockTaken",
    "Looping",
    "Middleware",
    "ModelGone",
    "NeverSent",
    "NoResult",
    "NotInJob",
    "Options",
    "Owner",
    "Qd",
    "QdError",
    "Queue",
    "QueueFailedOver",
    "RunningJob",
    "Scheduled",
    "ScheduledBackgroundTaskFinished",
    "ScheduledTaskFailed",
    "ScheduledTaskFinished",
    "ScheduledTaskSkipped",
    "ScheduledTaskStarting",
    "Sending",
    "Span",
    "UniqueJobSkipped",
    "UnknownBatch",
    "WorkerIdle",
    "WorkerInterrupted",
    "WorkerPausing",
    "WorkerResuming",
    "WorkerStarting",
    "WorkerStopping",
    "__version__",
    "current_job",
    "provided",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qd' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
