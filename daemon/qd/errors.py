"""One tree of errors. Everything qd raises on purpose is here; a caller that wants "anything of qd" catches QdError.

What ends a job from outside its code (JobTimeout and its sisters) and the two ways to settle it by hand derive from
BaseException, so that an `except Exception` in a job cannot swallow them.
"""

from __future__ import annotations

from collections.abc import Sequence


class QdError(Exception):
    """The root of qd's errors."""

    server: str | None = None
    """The driver of the control connection, if the error came from there and the connection of the jobs is another."""


class ConfigError(QdError):
    """The configuration cannot be used: a key, a value, a connection, an app. `qd` exits 78."""


class DeclarationError(QdError):
    """A job that cannot be declared: a lambda, a method, a name taken, `__main__` without a name."""


class ArgumentError(QdError, TypeError):
    """Arguments that do not fit the job's signature, found where it is dispatched."""


class NotInJob(QdError):
    """current_job() was asked outside a job."""


class UnknownJob(QdError):
    """No job of this name is declared in this app."""


class UnknownBatch(QdError):
    """No batch of this id is there, or not any more; or the job in hand belongs to none."""


class BatchFinished(QdError):
    """All jobs of the batch have ended: nothing can be added to it."""


class UnknownParameters(QdError):
    """The payload names a parameter this version does not know, or misses a required one: a deploy may be under way.
    missing: those of the second kind."""

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class WrongType(QdError):
    """A value in the payload does not convert to the declared type of its parameter."""


class NoProvider(WrongType):
    """A parameter is to be filled in on the worker, and the app provides nothing of its type."""


class ModelGone(QdError):
    """An argument that travelled as model and key is no longer in the database."""


class Malformed(QdError, ValueError):
    """The payload is not one: not JSON, cut, of wrong types. Its bytes go to the failed store as they are."""


class SignatureRefused(QdError):
    """The payload is not signed, or by a key that is not known, or was changed since: it is never run."""


class ConnectionLost(QdError):
    """The server is away, or the connection broke in a call. What the call did is unknown until it is asked."""


class NeedsMending(QdError):
    """Waiting does not help: somebody has to make a table or a queue, grant a right, or mend a name or a password. `qd work`
    exits 78 for it at its start, and tries again later."""


class Unreachable(ConnectionLost):
    """No connection could be made. Nothing was sent."""


class NoAnswer(ConnectionLost):
    """The server took a call, and did not answer it in time."""


class ServerRefused(QdError):
    """The server answered with an error: out of memory, no permission, a script failed. Nothing was changed."""


class Unusable(NeedsMending, Unreachable):
    """The server is there, and none to work with as the url stands: its certificate, its databases, what it is."""


class OtherKind(NeedsMending, ServerRefused):
    """The url is one of a single server, and a cluster is there, or the other way round."""


class NeverTaken(ServerRefused):
    """The server takes no such job, now or later, for what stands in it."""


class TooLarge(NeverTaken):
    """Its size."""


class WrongPassword(NeedsMending, ConnectionLost):
    """The server wants another user or password. Waiting helps only if somebody mends it."""


class ServerBusy(ConnectionLost):
    """The server answers but cannot serve now: LOADING, READONLY, MASTERDOWN, MISCONF, BUSY, OOM. Try again later."""


NOTHING_DONE = (Unreachable, ServerBusy, WrongPassword)
"""The server has not run, or not even got, what was sent: nobody has to ask it what became of that."""


class AttemptsExceeded(QdError):
    """The job was attempted too often, too long or crashed too often; it is failed before it runs again."""


class LockError(QdError):
    """A lock was used in a way that means nothing: given back by who does not hold it, taken twice by one object."""


class LockTaken(LockError, TimeoutError):
    """`with app.lock(...)` did not get the lock in time; it tells who has it."""


class LockLost(LockError):
    """The lock was held, and is not any more: its ttl was over, somebody deleted it, the server has lost it. Another may
    have had it since."""


class JobFailure(QdError):
    """job.fail("why") was called."""


class JobFailedError(JobFailure):
    """The job whose result was asked for has failed. kind: the name of its error ("ValueError"); message: its words."""

    def __init__(self, id: str, kind: str, message: str) -> None:
        super().__init__(id, kind, message)
        self.id, self.kind, self.message = id, kind, message

    def __str__(self) -> str:
        return (
            f"job {self.id} has failed: {self.kind}: {self.message}"
            if self.message
            else f"job {self.id} has failed: {self.kind}"
        )


class NoResult(QdError):
    """There is no result to give: the job keeps none (result_ttl), it has expired, or JSON could not carry it."""


class Settled(BaseException):
    """release() or fail() was called in the job: the outcome is noted, the rest of the job does not run."""


class EndJob(BaseException):
    """What ends a running job from outside its code. A worker that raised one takes no further job."""


class JobTimeout(EndJob):
    """The job ran longer than its timeout."""


class JobInterrupted(EndJob):
    """The worker stops soon: save what you have, the job is handed back."""


class JobCancelled(EndJob):
    """Somebody cancelled the job: handle.cancel(), `qd cancel`. It ends here, and is not tried again."""


class LeaseLost(EndJob):
    """The reservation is gone: somebody else may run this job now."""
