"""qd: background jobs on Redis, databases, beanstalkd and SQS, in Laravel's queue format.

Names are loaded on first use, because every process of the daemon imports this package and the master must stay small:
`import qd` loads nothing, `from qd import Qd` only what a producer needs. Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.9.0"

# module -> the public names that it defines
_DEFINED = {
    "qd.app": ("Qd",),
    "qd.arguments.injection": ("Provided", "Serialized", "Serializer", "provided"),
    "qd.dispatch.composite": ("Batch",),
    "qd.dispatch.dispatcher": ("Keyed", "Queue"),
    "qd.drivers.types": ("BatchState", "JobEvent"),
    "qd.errors": (
        "ArgumentError", "BatchFinished", "DeclarationError", "JobCancelled", "JobFailedError", "JobInterrupted",
        "JobTimeout", "LeaseLost", "LockError", "LockLost", "LockTaken", "NoResult", "NotInJob", "QdError", "ResultTimeout",
        "UnknownBatch",
    ),
    "qd.jobs.context": ("RunningJob", "current_job"),
    "qd.jobs.job": ("Call", "Job", "JobFunction", "Link", "NeverSent"),
    "qd.jobs.plan": ("Duration", "EventStream", "Handle", "Middleware", "Options", "SendOptions"),
    "qd.jobs.policy": ("Fail", "Retry"),
    "qd.locks": ("Limiter", "Lock"),
    "qd.options.kinds": ("Backoff",),
    "qd.schedule.builder": ("Scheduled",),
}  # fmt: skip
_HOMES = {name: module for module, names in _DEFINED.items() for name in names}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qd' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
