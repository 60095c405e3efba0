"""qd: background jobs on Redis, databases, beanstalkd and SQS, in Laravel's queue format.

Names are loaded when they are first used, because every process of the daemon passes through here, and the master must
stay as small as it is: `import qd` loads nothing, `from qd import Qd` what a producer needs. Type checkers read the same
names in `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# public name -> the module that defines it
_HOMES = {
    "ArgumentError": "qd.errors",
    "Batch": "qd.bus.batch",
    "BatchFinished": "qd.errors",
    "BatchState": "qd.connectors.batches",
    "Call": "qd.jobs",
    "Carried": "qd.arguments",
    "Carrier": "qd.arguments",
    "DeclarationError": "qd.errors",
    "Declare": "qd.jobs",
    "Dispatched": "qd.testing",
    "Event": "qd.events",
    "Fake": "qd.testing",
    "Given": "qd.arguments",
    "Handle": "qd.jobs",
    "Job": "qd.jobs",
    "JobAttempted": "qd.events",
    "JobCrashed": "qd.events",
    "JobError": "qd.errors",
    "JobExceptionOccurred": "qd.events",
    "JobFailed": "qd.events",
    "JobFunction": "qd.jobs",
    "JobHandedBack": "qd.events",
    "JobInterrupted": "qd.errors",
    "JobPopped": "qd.events",
    "JobPopping": "qd.events",
    "JobProcessed": "qd.events",
    "JobProcessing": "qd.events",
    "JobQueued": "qd.events",
    "JobQueueing": "qd.events",
    "JobReleased": "qd.events",
    "JobReleasedAfterException": "qd.events",
    "JobRetryRequested": "qd.events",
    "JobTimedOut": "qd.events",
    "JobTimeout": "qd.errors",
    "Keyed": "qd.bus.keyed",
    "Limiter": "qd.locks",
    "Lock": "qd.locks",
    "LockError": "qd.errors",
    "LockTaken": "qd.errors",
    "Looping": "qd.events",
    "Middleware": "qd.jobs",
    "ModelGone": "qd.errors",
    "NeverSent": "qd.jobs",
    "NoResult": "qd.errors",
    "NotInJob": "qd.errors",
    "Options": "qd.jobs",
    "Owner": "qd.locks",
    "Qd": "qd.app",
    "QdError": "qd.errors",
    "Queue": "qd.bus.named",
    "QueueFailedOver": "qd.events",
    "RunningJob": "qd.bus.running",
    "Scheduled": "qd.schedule",
    "ScheduledBackgroundTaskFinished": "qd.events",
    "ScheduledTaskFailed": "qd.events",
    "ScheduledTaskFinished": "qd.events",
    "ScheduledTaskSkipped": "qd.events",
    "ScheduledTaskStarting": "qd.events",
    "Sending": "qd.jobs",
    "Span": "qd.jobs",
    "UniqueJobSkipped": "qd.events",
    "UnknownBatch": "qd.errors",
    "WorkerIdle": "qd.events",
    "WorkerInterrupted": "qd.events",
    "WorkerPausing": "qd.events",
    "WorkerResuming": "qd.events",
    "WorkerStarting": "qd.events",
    "WorkerStopping": "qd.events",
    "current_job": "qd.bus.running",
    "provided": "qd.arguments",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qd' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
