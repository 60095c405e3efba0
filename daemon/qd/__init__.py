"""qd: background jobs on Redis, databases, beanstalkd and SQS, in Laravel's queue format.

Names are loaded on first use, because every process of the daemon imports this package and the master must stay small:
`import qd` loads nothing, `from qd import Qd` only what a producer needs. Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# public name -> the module that defines it
_HOMES = {
    "ArgumentError": "qd.errors",
    "Batch": "qd.dispatch.batch",
    "BatchFinished": "qd.errors",
    "BatchState": "qd.drivers.types",
    "Call": "qd.jobs.job",
    "DeclarationError": "qd.errors",
    "Duration": "qd.jobs.plan",
    "Handle": "qd.jobs.plan",
    "Job": "qd.jobs.job",
    "JobCancelled": "qd.errors",
    "JobFailedError": "qd.errors",
    "JobFunction": "qd.jobs.job",
    "JobInterrupted": "qd.errors",
    "JobTimeout": "qd.errors",
    "Keyed": "qd.dispatch.dispatcher",
    "LeaseLost": "qd.errors",
    "Limiter": "qd.locks",
    "Lock": "qd.locks",
    "LockError": "qd.errors",
    "LockLost": "qd.errors",
    "LockTaken": "qd.errors",
    "Middleware": "qd.jobs.plan",
    "NeverSent": "qd.jobs.job",
    "NoResult": "qd.errors",
    "NotInJob": "qd.errors",
    "Options": "qd.jobs.plan",
    "Provided": "qd.arguments.injection",
    "Qd": "qd.app",
    "QdError": "qd.errors",
    "Queue": "qd.dispatch.dispatcher",
    "RunningJob": "qd.jobs.context",
    "Scheduled": "qd.schedule.builder",
    "SendOptions": "qd.jobs.plan",
    "Serialized": "qd.arguments.injection",
    "Serializer": "qd.arguments.injection",
    "UnknownBatch": "qd.errors",
    "current_job": "qd.jobs.context",
    "provided": "qd.arguments.injection",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qd' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
