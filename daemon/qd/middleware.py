"""The middleware that comes with qd, for `from qd.middleware import RateLimited`. What each does stands in its docstring."""

from qd.bus.concurrency import ConcurrencyLimit, WithoutOverlapping
from qd.bus.middleware import FailOnException, RateLimited, SkipIf, SkipIfBatchCancelled, ThrottlesExceptions
from qd.jobs.plan import Middleware

__all__ = [
    "ConcurrencyLimit",
    "FailOnException",
    "Middleware",
    "RateLimited",
    "SkipIf",
    "SkipIfBatchCancelled",
    "ThrottlesExceptions",
    "WithoutOverlapping",
]
