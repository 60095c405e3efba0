"""All exceptions that qd raises on purpose, in one tree. `except QdError` catches every error of qd.

The exceptions that end a job from outside its code (EndJob) and those behind release() and fail() (Settled) derive from
BaseException, so that `except Exception` in a job does not catch them.
"""

from __future__ import annotations

from collections.abc import Sequence


class QdError(Exception):
    """The base class of qd's errors."""

    server: str | None = None
    """The driver of the control connection, if that raised the error and the job's connection is another one."""


class ConfigError(QdError):
    """The configuration is invalid: a key, a value, a connection or the app. `qd` exits with 78."""


class DeclarationError(QdError):
    """An invalid declaration: a lambda or method as a job, a name that is taken, a job of `__main__` without a name."""


class ArgumentError(QdError, TypeError):
    """Arguments that do not match the job's signature. Raised where the job is dispatched."""


class NotInJob(QdError):
    """current_job() was called outside a job."""


class UnknownJob(QdError):
    """The app declares no job of this name."""


class NewerVersion(UnknownJob):
    """The app declares an older version of the job than the payload has: a deploy may be in progress."""


class UnknownBatch(QdError):
    """No batch has this id, the batch has expired, or the current job belongs to no batch."""


def unknown_batch(id: str) -> UnknownBatch:
    why = "it has expired (a day after its end, or 30 days with failed jobs), or is on another connection or server"
    return UnknownBatch(f"no batch '{id}' exists: {why}; `qd batch list` shows those that exist")


class BatchFinished(QdError):
    """All jobs of the batch have ended, so no job can be added."""


class UnknownParameters(QdError):
    """The payload has a parameter that this version of the job lacks, or lacks a required one: a deploy may be in
    progress. missing: the required parameters that the payload lacks."""

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class WrongType(QdError):
    """A value in the payload cannot be converted to the declared type of its parameter."""


class NoProvider(WrongType):
    """The worker must provide a parameter, and the app has no provider for its type."""


class ModelGone(QdError):
    """An argument that was sent as model and key is no longer in the database."""


class Malformed(QdError, ValueError):
    """The payload is invalid: truncated, not JSON, or of wrong types. The failed store keeps its bytes unchanged."""


class SignatureRefused(QdError):
    """The payload is unsigned, signed with an unknown key, or was changed after signing. The job never runs."""


class DecryptionRefused(QdError):
    """The arguments of an encrypted job were changed after it was sent. The job never runs."""


class ConnectionLost(QdError):
    """The server is unreachable, or the connection broke during a call, whose effect is then unknown."""


class NeedsMending(QdError):
    """An operator has to act: create a table or a queue, grant a permission, or correct a name or password. `qd work` exits
    with 78 for it at its start, and retries later."""


class Unreachable(ConnectionLost):
    """No connection could be opened. Nothing was sent."""


class NoAnswer(ConnectionLost):
    """The server did not answer a call in time."""


class ServerRefused(QdError):
    """The server answered with an error: out of memory, no permission, a failed script. It changed nothing."""


class Unusable(NeedsMending, Unreachable):
    """The server cannot be used with this url: its certificate, its databases or its kind do not match."""


class OtherKind(NeedsMending, ServerRefused):
    """The url is for a single server and the server is a cluster, or vice versa."""


class NeverTaken(ServerRefused):
    """The server will never accept this job because of its content."""


class TooLarge(NeverTaken):
    """The server will never accept this job because of its size."""


class WrongPassword(NeedsMending, ConnectionLost):
    """The server refused the user or password; an operator has to correct it."""


class ServerBusy(ConnectionLost):
    """The server answers but cannot serve now: LOADING, READONLY, MASTERDOWN, MISCONF, BUSY, OOM. Try again later."""


NOTHING_DONE = (Unreachable, ServerBusy, WrongPassword)
"""The server has not executed the call, so its outcome needs no check."""


class AttemptsExceeded(QdError):
    """The job has used up its attempts, its time or its crashes; it fails before it runs again."""


class LockError(QdError):
    """Wrong use of a lock: released by a process that does not hold it, or acquired twice by one object."""


class LockTaken(LockError, TimeoutError):
    """`with app.lock(...)` did not get the lock in time; the message names its owner."""


class LockLost(LockError):
    """The lock was lost before its release: its ttl passed, it was deleted, or the server lost it. Another process may have
    held it since."""


class JobFailure(QdError):
    """The job called job.fail("why") or raised Fail("why")."""


class JobFailedError(JobFailure):
    """The job whose result was requested has failed. kind: the class name of its error ("ValueError"); message: its text."""

    def __init__(self, id: str, kind: str, message: str) -> None:
        super().__init__(id, kind, message)
        self.id, self.kind, self.message = id, kind, message

    def __str__(self) -> str:
        what = "batch" if self.kind == "BatchFailed" else "job"
        return f"{what} {self.id} has failed: {self.kind}" + (f": {self.message}" if self.message else "")


class NoResult(QdError):
    """The job has no result: it keeps none (result_ttl), the result has expired, or was not JSON."""


class ResultTimeout(QdError, TimeoutError):
    """The job did not end in time and keeps running; its handle can wait again: the message has its id."""


class Settled(BaseException):
    """The base class of Retry and Fail, which release() and fail() raise: the rest of the job does not run."""

    job: object = None  # whose release() or fail() has recorded it; None: it was raised directly


class EndJob(BaseException):
    """Ends a running job from outside its code. The worker runs no further job after it."""


class JobTimeout(EndJob):
    """The job ran longer than its timeout."""


class JobInterrupted(EndJob):
    """The worker is stopping: save your work, the job will be handed back."""


class JobCancelled(EndJob):
    """The job was cancelled by handle.cancel() or `qd cancel`. It ends now and is not retried."""


class LeaseLost(EndJob):
    """The worker lost its reservation: another worker may run this job now."""
