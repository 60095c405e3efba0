"""The job in hand: what current_job() and middleware are given. The worker enters and leaves it; a job that runs where it is
sent (local.py) is one of its thread or task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from msgspec import Raw

from qd.arguments.parameters import ABSENT
from qd.arguments.values import FAILURES, decode_value, encode, look, why
from qd.errors import ArgumentError, NotInJob, Settled, UnknownParameters, WrongType
from qd.jobs.policy import Fail, Release
from qd.jobs.registry import Declared
from qd.options.kinds import span_in_code
from qd.payload.format import Relations, tags_of

if TYPE_CHECKING:
    from qd.drivers.base import Connector


MOST_SAVED = 64 * 1024  # bytes of JSON: it travels with the payload at every step


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` starts in any `per` seconds: what app.limit(name) has declared."""

    most: int
    per: float


class Backing(Protocol):
    """What middleware reaches through its job: the connections and the declared limits of the app."""

    def connection(self, name: str) -> Connector:
        """This thread's connection. name: "" is the default one."""

    def limit(self, name: str) -> Limit:
        """Raises DeclarationError if the app has declared no limit of that name."""


class LocalRun(Protocol):
    """What a job of run() has in place of a connection: middleware lets every job through, and no server is asked."""

    @property
    def batch(self) -> object | None:
        """The batch that is run, as app.current_batch() returns it."""

    @property
    def store(self) -> object: ...

    def within(self, seconds: float) -> AbstractContextManager[None]: ...


class RunningJob:
    """One attempt of a job. attempt: 1 = the first. stopping: the worker was asked to stop, so save your place.

    uuid: the same in every attempt and after a crash. mark: of this attempt alone, "" in run(). payload: its bytes, b"" in
    run(). timeout: seconds it may run, 0 without end. ties: what else hangs on it, None for a plain job.
    outcome: what release() or fail() settled; it holds even when the job's code swallows what they raise. skipped: it was
    not run, since its batch was cancelled, whatever the middleware around says that it returned. unfreed: how many places
    (concurrency.py) it may have whose server did not answer. local: what it has in place of a connection in run(); None: it
    has a connection.
    """

    __slots__ = (
        "_fields",
        "_keep",
        "_saved",
        "_tags",
        "_tell",
        "attempt",
        "backing",
        "connection",
        "data",
        "declared",
        "id",
        "local",
        "mark",
        "name",
        "outcome",
        "payload",
        "queue",
        "skipped",
        "stopping",
        "ties",
        "timeout",
        "unfreed",
        "uuid",
    )

    def __init__(
        self,
        id: str,
        name: str,
        queue: str,
        attempt: int,
        saved: bytes | None = None,
        keep: Callable[[bytes], None] | None = None,
        *,
        connection: str = "",
        payload: bytes = b"",
        uuid: str = "",
        mark: str = "",
        timeout: float = 0.0,
        ties: Relations | None = None,
        declared: Declared | None = None,
        data: bytes | Raw = b"{}",
        backing: Backing | None = None,
        tell: Callable[[float], None] | None = None,
        tags: tuple[str, ...] = (),
        local: LocalRun | None = None,
    ) -> None:
        """saved: the JSON text of the last checkpoint. keep: takes the next one, and keeps it with the job. data: its
        arguments, as they travelled. backing: its app's; None: it belongs to no app. tell: takes how far the job is; None:
        nothing records it. tags: of a job without a payload."""
        self._saved, self._keep, self._tell = saved, keep, tell
        self.connection, self.payload, self.ties, self.backing = connection, payload, ties, backing
        self.uuid, self.mark, self.timeout = uuid or id, mark, timeout
        self.declared, self.data, self.local, self._tags = declared, data, local, tags
        self._fields: Any = ABSENT  # its arguments, once they are converted
        self.id = id
        self.name = name
        self.queue = queue
        self.attempt = attempt
        self.stopping = self.skipped = False
        self.unfreed = 0
        self.outcome: Release | Fail | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What its function is called with, by name: of the declared types, with the defaults. Each time a new dict of the
        same values. An object that is loaded on the worker is given as its model and key (Serialized).

        As JSON, without defaults, where the arguments do not convert or no job of this name is declared.
        """
        if self._fields is ABSENT and self.declared is not None:
            with suppress(UnknownParameters, WrongType):
                self._fields = self.declared.decode(bytes(self.data))
        if self._fields is not ABSENT and self.declared is not None:
            return self.declared.arguments(self._fields)
        found = decode_value(bytes(self.data))
        return found if isinstance(found, dict) else {}

    def prepared(self, declared: Declared) -> Callable[[], object]:
        """Its function with its arguments, converted once: `arguments` has the same. Raises UnknownParameters, WrongType."""
        self._fields = declared.decode(bytes(self.data))
        return declared.call(self._fields)

    @property
    def tags(self) -> tuple[str, ...]:
        """The words it was declared or sent with, read from its payload where it has one."""
        return tags_of(self.payload) if self.payload else self._tags

    @property
    def saved(self) -> Any:
        """What the last checkpoint saved, of this attempt or of one before; None: nothing. Each time a copy of its own."""
        try:
            return None if self._saved is None else decode_value(self._saved)
        except WrongType:
            return None  # another program's

    def checkpoint(self, state: object) -> None:
        """Keep `state` with the job: the next attempt finds it in `saved`, whatever ends this one.

        What JSON can say, 64 KiB at most; it takes the place of the checkpoint before. From any thread of the job. While
        the server is away it is remembered, and goes with the next checkpoint or with the job's answer. Raises
        ArgumentError; NotInJob when the job is over, or from a process that it has forked.
        """
        text = encoded(state)
        if self._keep is not None:
            self._keep(text)
        self._saved = text

    def progress(self, percent: float) -> None:
        """Say how far the job is, 0 to 100, for handle.progress(). One call of the server, from any thread of the job; a
        server that is away is passed over. Nothing happens in a job without result_ttl, whose record it stands in.

        Raises ArgumentError for what is no number from 0 to 100.
        """
        if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
            raise ArgumentError(f"job.progress() takes a number from 0 to 100, not {percent!r}")
        if self._tell is not None:
            self._tell(percent)

    def release(self, delay: float | timedelta = 0, *, reason: str = "", counts: bool = True) -> NoReturn:
        """Stop here, and run again in `delay` seconds. Raises through the job.

        reason: for the log line and JobReleased. counts: whether this attempt does; False for middleware, which puts back
        what could not run now.
        """
        self.outcome = Release(span_in_code(delay), reason, counts)
        raise Settled(f"released for {self.outcome.delay:g} s")

    def fail(self, reason: str) -> NoReturn:
        """Stop here; the job has failed for good. Raises through the job."""
        self.outcome = Fail(reason)
        raise Settled(f"failed: {reason}")

    def __repr__(self) -> str:
        return f"<running job {self.name} id={self.id} attempt={self.attempt}>"


def encoded(state: object) -> bytes:
    try:
        look(state)
        text = encode(state)
    except FAILURES as error:
        raise ArgumentError(f"job.checkpoint() cannot save {type(state).__qualname__}: {why(error)}") from None
    if len(text) > MOST_SAVED:
        fact = f"job.checkpoint() was given {len(text)} bytes of JSON, more than {MOST_SAVED}"
        raise ArgumentError(f"{fact}: save a place (an id, a row number), and the rest elsewhere")
    return text


_in_hand: RunningJob | None = None  # the worker's: one at a time, seen by every thread the job starts
_here: ContextVar[RunningJob | None] = ContextVar("qd_job_run_here", default=None)  # of run(): one a thread or task


def enter(job: RunningJob) -> None:
    """This process works on `job` now."""
    global _in_hand
    _in_hand = job


def tell_stopping() -> None:
    """The worker was asked to stop: the job in hand can see it. Called from a signal handler."""
    if _in_hand is not None:
        _in_hand.stopping = True


def leave() -> None:
    global _in_hand
    _in_hand = None


def current_job() -> RunningJob:
    """The job this code runs in. Raises NotInJob outside of one."""
    job = _here.get() or _in_hand
    if job is None:
        raise NotInJob("current_job() was asked outside a job: it is for code that a worker or run() runs")
    return job


@contextmanager
def in_hand(job: RunningJob) -> Iterator[None]:
    """It is the current job of this thread or task."""
    token = _here.set(job)
    try:
        yield
    finally:
        _here.reset(token)
