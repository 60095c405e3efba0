"""The current job: what current_job() returns and middleware receives.

A worker that runs one job at a time sets it for the whole process. A job that runs where it is sent (dispatch/local.py), or
beside others in one worker, is set for its thread or task only. Threads that such a job has started itself see it as long
as no other job runs in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar, overload

from msgspec import Raw

from qd.arguments.parameters import ABSENT
from qd.arguments.values import FAILURES, check_value, decode_value, encode, why
from qd.errors import ArgumentError, EndJob, JobFailure, NotInJob, Settled, UnknownParameters, WrongType
from qd.jobs.policy import Fail, GiveUp, Release, Retry
from qd.jobs.registry import Declared
from qd.payload.format import Relations, tags_of

if TYPE_CHECKING:
    from qd.drivers.base import Connector

P = ParamSpec("P")
T = TypeVar("T")

MOST_SAVED = 64 * 1024  # bytes of a checkpoint: it travels with the payload at every step
MOST_EMITTED = 16 * 1024  # bytes of an event, or of the details of a progress


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` starts in any `per` seconds, as app.limit(name) declared it."""

    most: int
    per: float


class Backing(Protocol):
    """What middleware can reach through its job: the app's connections and declared limits."""

    def connection(self, name: str) -> Connector:
        """This thread's connection. name: "" is the default one."""

    def limit(self, name: str) -> Limit:
        """Raises DeclarationError if the app has declared no limit of that name."""


class LocalRun(Protocol):
    """Takes the place of a connection in run(): middleware lets every job through, and no server is involved."""

    @property
    def batch(self) -> object | None:
        """The batch that is being run, as app.current_batch() returns it."""

    @property
    def store(self) -> object: ...

    def within(self, seconds: float) -> AbstractContextManager[None]: ...


@dataclass(slots=True, eq=False, repr=False)
class RunningJob:
    """One attempt of a job.

    Attributes:
        attempt: 1 = the first. A run whose worker died does not count.
        uuid: The same in every attempt and after a crash.
        mark: Identifies this attempt; "" in run().
        payload: The bytes of the payload; b"" in run().
        timeout: Seconds the attempt may take; 0: unlimited.
        stopping: True once the worker is stopping: save a checkpoint and return.
        interrupted: An earlier attempt had started, and its worker died before it ended.
        ended_by: The JobTimeout, JobInterrupted, JobCancelled or LeaseLost that ends the attempt from outside; None: none.
            An async job sees a CancelledError for all of them.
        relations: Lock, key, chain and batch of the job; None for a plain job.
        outcome: What release() or fail() decided, even if the job's code swallows the exception they raise; or what Retry
            or Fail decided, once it has left the job.
        version: Of `data`; None: that of the declaration.
        skipped: The job was not run because its batch was cancelled.
        unfreed: How many concurrency slots it may still hold because the server did not answer.
        local: Takes the place of a connection in run(); None: the job has a connection.
    """

    id: str
    name: str
    queue: str
    attempt: int
    _saved: bytes | None = None  # JSON text of the last checkpoint
    _save: Callable[[bytes], None] | None = None  # stores the next one with the job
    _: KW_ONLY
    connection: str = ""
    payload: bytes = b""
    uuid: str = ""
    mark: str = ""
    timeout: float = 0.0
    relations: Relations | None = None
    declared: Declared | None = None
    data: bytes | Raw = b"{}"  # its arguments as JSON
    version: int | None = None
    backing: Backing | None = None
    local: LocalRun | None = None
    interrupted: bool = False
    stopping: bool = False
    skipped: bool = False
    ended_by: EndJob | None = None
    unfreed: int = 0
    outcome: Release | GiveUp | None = None
    _report_progress: Callable[[float, bytes], None] | None = None  # records percentage and details; None: nothing does
    _emit: Callable[[bytes], None] | None = None  # sends an event; None: nothing does
    _step_store: Callable[..., Any] | None = None  # see jobs/steps.py
    _steps: Any = None
    _tags: tuple[str, ...] = ()  # of a job without a payload
    _fields: Any = ABSENT  # its arguments, once they are converted

    def __post_init__(self) -> None:
        self.uuid = self.uuid or self.id

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its function by name, converted to the declared types, with defaults. A new dict each time.

        An object that the worker loads is given as its model and key (Serialized). If the arguments do not convert, or no
        job of this name is declared: the plain JSON values, without defaults.
        """
        if self._fields is ABSENT and self.declared is not None:
            with suppress(UnknownParameters, WrongType):
                self._fields = self.declared.decode(self.current_data())
        if self._fields is not ABSENT and self.declared is not None:
            return self.declared.arguments(self._fields)
        found = decode_value(bytes(self.data))
        return found if isinstance(found, dict) else {}

    def current_data(self) -> bytes:
        """`data`, upgraded to the declared version. Raises WrongType."""
        if self.version is not None and self.declared is not None and self.version < self.declared.version:
            self.data = self.declared.upgraded(bytes(self.data), self.version)
            self.version = self.declared.version
        return bytes(self.data)

    def prepared(self, declared: Declared) -> Callable[[], object]:
        """The call of its function, with the values of `arguments`. Raises UnknownParameters, WrongType."""
        self._fields = declared.decode(self.current_data())
        return declared.call(self._fields)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags it was declared or sent with."""
        return tags_of(self.payload) if self.payload else self._tags

    @property
    def saved(self) -> Any:
        """The state of the last checkpoint, of this or an earlier attempt; None before the first. A new copy each time."""
        try:
            return None if self._saved is None else decode_value(self._saved)
        except WrongType:
            return None  # written by another program

    def checkpoint(self, state: object) -> None:
        """Save `state` with the job, replacing the last checkpoint. The next attempt finds it in `saved`.

        `state` is a JSON value of at most 64 KiB. May be called from any thread of the job. If the server is unreachable,
        the state is sent with the next checkpoint or with the job's ack.

        Raises:
            ArgumentError: JSON cannot represent it, or it is too large.
            NotInJob: The job has ended, or this process was forked by the job.
        """
        hint = "save a position (an id, a row number), and the rest elsewhere"
        text = encoded(state, "job.checkpoint()", "save", MOST_SAVED, hint)
        if self._save is not None:
            self._save(text)
        self._saved = text

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once, however often the job is tried: `page = job.step("fetch", fetch, url)`.

        In an async job: `await job.step("fetch", afetch, url)`. While the server is unreachable, it waits.

        Args:
            name: Of the step, used once in an attempt.
            function: It returns what JSON can represent.

        Returns:
            In every attempt, the first too: the result from its JSON, converted to the function's return annotation.

        Raises:
            ArgumentError: The name was used, the result is no JSON, or there are over 1,000 steps or 1 MB of results.
            NotInJob: The job has ended, or this process was forked by the job.
        """
        from qd.jobs.steps import step  # loaded only by jobs that use it

        return step(self, name, function, lambda: function(*args, **kwargs))

    def emit(self, data: object) -> None:
        """Send an event to all who follow the job, within 50 ms: `current_job().emit({"token": "Hello"})`.

        From any thread of the job, and from async code. It does not wait; while the server is unreachable, events wait in
        the worker. The server keeps the last 1,000 of a job, and 1 MB. Does nothing in run().

        Args:
            data: A JSON value of at most 16 kB.

        Raises:
            ArgumentError: JSON cannot represent it, or it is too large.
            NotInJob: The job has ended, or this process was forked by the job.
        """
        text = encoded(data, "job.emit()", "send", MOST_EMITTED, "emit smaller pieces, or the address of the data")
        if self._emit is not None:
            self._emit(text)

    def progress(self, percent: float, message: str | None = None, **fields: object) -> None:
        """Report the progress of the job for its handle: `job.progress(40, "scaling", step=3, of=7)`.

        Costs one call to the server; an unreachable server is ignored. May be called from any thread of the job. Does
        nothing in a job without result_ttl. Raises ArgumentError for other values.

        Args:
            percent: A number from 0 to 100.
            message: What the job does now, for people.
            fields: JSON values, of at most 16 kB together.
        """
        if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
            raise ArgumentError(f"job.progress() takes a number from 0 to 100, not {percent!r}")
        details = fields if message is None else {"message": message, **fields}
        text = encoded(details, "job.progress()", "report", MOST_EMITTED, "emit() it") if details else b""
        if self._report_progress is not None:
            self._report_progress(percent, text)

    def release(self, delay: float | timedelta = 0, *, reason: str = "", counts: bool = True) -> NoReturn:
        """Stop here and run again in `delay` seconds. Raises Retry through the job.

        Args:
            delay: Seconds, or a timedelta.
            reason: For the log line and JobReleased.
            counts: Whether this attempt counts. False for middleware that puts back a job that cannot run yet.
        """
        self._settle(Retry(delay, reason=reason, counts=counts))

    def fail(self, reason: str) -> NoReturn:
        """Stop here and mark the job as permanently failed. Raises Fail through the job."""
        self._settle(Fail(reason))

    def _settle(self, raised: Retry | Fail) -> NoReturn:
        self.outcome, raised.job = raised.decision, self
        raise raised

    def take_decision(self, error: BaseException | None) -> bool:
        """Take the outcome that `error` decides: a Retry or Fail, also in the group that a TaskGroup makes of it. One that
        an outer job has recorded decides nothing here. Returns whether the outcome is decided."""
        found = error.subgroup(Settled) if isinstance(error, BaseExceptionGroup) else error
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if self.outcome is None and isinstance(found, Retry | Fail) and found.job is None:
            self.outcome = found.decision
            if isinstance(found, Fail):
                failure = JobFailure(found.decision.reason).with_traceback(found.__traceback__)
                failure.__cause__ = found.__cause__
                self.outcome = GiveUp(found.decision.reason, failure)
        return self.outcome is not None

    def __repr__(self) -> str:
        return f"<running job {self.name} id={self.id} attempt={self.attempt}>"


def encoded(value: object, method: str, verb: str, most: int, hint: str) -> bytes:
    """The JSON text of a value. Raises ArgumentError."""
    try:
        check_value(value)
        text = encode(value)
    except FAILURES as error:
        raise ArgumentError(f"{method} cannot {verb} {type(value).__qualname__}: {why(error)}") from None
    if len(text) > most:
        raise ArgumentError(f"{method} was given {len(text)} bytes of JSON, more than {most}: {hint}")
    return text


_of_process: RunningJob | None = None  # the worker's only current job, seen by every thread the job starts
_running: dict[int, RunningJob] = {}  # every current job of the worker, by its id()
_of_task = ContextVar[RunningJob | None]("qd_job_run_here", default=None)  # of run(): one per thread or task


def enter(job: RunningJob) -> None:
    """`job` is a current job of this process."""
    global _of_process
    _running[id(job)] = job
    _of_process = job if len(_running) == 1 else None


def leave(job: RunningJob) -> None:
    global _of_process
    _running.pop(id(job), None)
    _of_process = None
    if len(_running) == 1:
        _of_process = next(iter(_running.values()), None)


def set_stopping() -> None:
    """Let the current jobs see that the worker is stopping. Called from a signal handler."""
    for job in list(_running.values()):
        job.stopping = True


def of_task(job: RunningJob) -> None:
    """`job` is the current job of this context, for as long as that lives."""
    _of_task.set(job)


def note_end(error: EndJob) -> None:
    """The only current job of this process is being ended."""
    if _of_process is not None:
        _of_process.ended_by = error


def current_job() -> RunningJob:
    """The job this code runs in: `current_job().attempt`. Raises NotInJob outside a job."""
    job = _of_task.get() or _of_process
    if job is None:
        raise NotInJob("current_job() was called outside a job: only code that a worker or run() runs has one")
    return job


@contextmanager
def running(job: RunningJob) -> Iterator[None]:
    """In the block `job` is the current job of this thread or task."""
    token = _of_task.set(job)
    try:
        yield
    finally:
        _of_task.reset(token)
