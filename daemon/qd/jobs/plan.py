"""How a job is sent: its options (Options, SendOptions), the Plan they make, the Sender, and the Handle it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from qd.arguments.signature import Pattern
from qd.drivers.pausing import Pausing, block_on, threaded, wait_for
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.context import RunningJob
from qd.jobs.registry import Declared
from qd.options.kinds import seconds_of
from qd.options.tables import JobOptions

T_co = TypeVar("T_co", covariant=True)

Duration = float | timedelta  # seconds, or a timedelta


class Middleware(Protocol):
    """Runs around a job: calls `call_next()` to run it, and returns what the job returns."""

    def __call__(self, job: RunningJob, call_next: Callable[[], Any], /) -> object: ...


class Options(TypedDict, total=False):
    """Options of a job, both in @app.job(...) and in .using(...)."""

    queue: str
    connection: str
    tries: int
    timeout: Duration
    backoff: Duration | Sequence[Duration]
    max_exceptions: int
    retry_for: Duration
    fail_on_timeout: bool
    tags: Sequence[str]
    display_name: str
    unique: str  # "order:{order_id}", filled in from the arguments
    unique_for: Duration
    unique_until: Literal["start", "done"]
    middleware: Sequence[Middleware]
    result_ttl: Duration
    delete_when_missing: bool
    raw: bool
    exclusive: bool  # no other job runs in its worker meanwhile
    version: int  # of its arguments, 1 if not given
    upgrade: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]  # {1: from_v1, 2: from_v2}


class SendOptions(Options, total=False):
    """Options of one dispatch. delay: seconds from now, or a datetime with a time zone."""

    delay: Duration | datetime
    key: str
    after_commit: bool


class Plan:
    """How one job is sent: its declaration, and the options of the declaration and of .using(...).

    routes: the sender's cache of what follows from declaration and options; shared by plans that differ in the delay only.
    """

    __slots__ = ("after_commit", "by", "declared", "delay", "key", "options", "routes")

    def __init__(self, declared: Declared, options: JobOptions) -> None:
        if options.unique is not None or options.display_name is not None:
            patterns(declared, options)  # report an unknown name in them at the declaration
        self.declared = declared
        self.options = options
        self.delay: Duration | datetime | None = None
        self.key: str | None = None
        self.after_commit: bool | None = None
        self.by: Callable[[Any], object] | None = None  # called with a dispatch.dispatcher.Queue in place of the push
        self.routes: list[Any] = []

    def using(self, given: Mapping[str, Any]) -> Plan:
        options, name = dict(given), self.declared.name
        delay, key = options.pop("delay", self.delay), options.pop("key", self.key)
        after_commit = options.pop("after_commit", self.after_commit)
        if options.get("raw", self.declared.options.raw) != self.declared.options.raw:
            raise DeclarationError("using() cannot change raw: set it in @app.job(raw=...)")
        if not options.keys().isdisjoint(("version", "upgrade")):
            raise DeclarationError("using() takes no version or upgrade: set them in @app.job()")
        if "middleware" in options:
            raise DeclarationError("using() takes no middleware (a payload carries no functions): set it in @app.job()")
        if key is not None and not (isinstance(key, str) and key.strip()):
            raise DeclarationError(f"option key of job '{name}': {key!r} is no name (written 'order:42')")
        if not isinstance(after_commit, bool | None):
            raise DeclarationError(f"option after_commit of job '{name}': {after_commit!r} is neither True nor False")
        plan = Plan(self.declared, JobOptions.read(options, name).over(self.options) if options else self.options)
        plan.delay, plan.key, plan.after_commit = delay, key, after_commit
        if not options:
            plan.routes = self.routes
        return plan


def patterns(declared: Declared, options: JobOptions) -> tuple[Pattern | None, Pattern | None]:
    """display_name and unique, to be filled in from the arguments. Raises DeclarationError."""
    texts = (("display_name", options.display_name), ("unique", options.unique))
    if options.unique_for == 0:
        fact = "a lock held for 0 seconds has no effect; give more"
        raise DeclarationError(f"option unique_for of {declared.signature.title}: {fact}")
    display, unique = [None if text is None else Pattern(name, text, declared.signature) for name, text in texts]
    return display, unique


Status = Literal["ready", "delayed", "running", "done", "failed", "unknown"]


class Place(NamedTuple):
    """Where jobs are sent, for a handle made from an id alone. connection: None is the default one."""

    connection: str | None
    queue: str


class JobLookup(Protocol):
    """Status, result, progress and cancellation of jobs, by id."""

    def status(self, id: str) -> Status: ...

    def result(self, id: str, timeout: float | None) -> Pausing[Any]: ...

    def progress(self, id: str) -> float | None: ...

    def cancel(self, id: str) -> bool: ...


class Sender(Protocol):
    """Sends and runs jobs: the app's Dispatcher."""

    def send(self, plan: Plan, data: bytes) -> str:
        """Send one job. Returns its id."""

    async def asend(self, plan: Plan, data: bytes) -> str:
        """As send, for the tasks of an event loop."""

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run one job in this process. Returns what it returned."""

    def lookup(self, at: Plan | Place) -> JobLookup:
        """The lookup of jobs sent by this plan, or to this place."""


def waiting_time(timeout: Duration | None) -> float | None:
    """The timeout of result() in seconds. Raises ArgumentError."""
    return None if timeout is None else seconds_of("timeout of result()", timeout, ArgumentError)


class Handle(Generic[T_co]):
    """A job that was sent. id: the one that current_job() and the log lines show.

    Each method may raise ConnectionLost and ServerRefused.
    """

    __slots__ = ("_at", "_sender", "id")

    def __init__(self, id: str, sender: Sender | None = None, at: Plan | Place | None = None) -> None:
        self.id: Final[str] = id
        self._sender, self._at = sender, at

    def status(self) -> Status:
        """Its current status. A job that succeeded is "unknown" if it has no result_ttl. Searching for a waiting job scans
        its queue."""
        return self._lookup().status(self.id)

    def result(self, timeout: Duration | None = None) -> T_co:
        """Wait until the job has ended, for at most `timeout` seconds (None: no limit), and return its result.

        Raises:
            TimeoutError: It has not ended in time.
            JobFailedError: It has failed, or was cancelled.
            NoResult: It keeps no result (result_ttl), or the result has expired.
        """
        return block_on(self._result(timeout))

    async def aresult(self, timeout: Duration | None = None) -> T_co:
        """As result(); the event loop goes on."""
        return await wait_for(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Pausing[T_co]:
        return self._lookup().result(self.id, waiting_time(timeout))

    def progress(self) -> float | None:
        """The percentage the job reported last, 100 once it is done. None: nothing reported, or no result_ttl."""
        return self._lookup().progress(self.id)

    def cancel(self) -> bool:
        """Cancel it. True: it will not run, or it is being stopped. False: it had already ended, is unknown,
        or is run by a program other than qd. Searching for a waiting job scans its queue."""
        return self._lookup().cancel(self.id)

    async def astatus(self) -> Status:
        """As status(), in a thread."""
        return await threaded(self.status).wait()  # type: ignore[no-any-return]

    async def acancel(self) -> bool:
        """As cancel(), in a thread."""
        return await threaded(self.cancel).wait()  # type: ignore[no-any-return]

    def _lookup(self) -> JobLookup:
        if self._sender is None or self._at is None:
            raise DeclarationError(f"{self!r} has no queue: make it with app.handle(id, queue=...)")
        return self._sender.lookup(self._at)

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"
