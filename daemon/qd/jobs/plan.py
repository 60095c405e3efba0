"""How a job is sent: its options (Options, SendOptions), the Plan they make, the Sender, and the Handle it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from qd.arguments.signature import Pattern
from qd.drivers.pausing import Pausing, block_on, threaded, wait_for
from qd.drivers.types import JobEvent, Kept
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.context import RunningJob
from qd.jobs.registry import Declared
from qd.options.kinds import Backoff, seconds_of
from qd.options.tables import JobOptions

T_co = TypeVar("T_co", covariant=True)

Duration = float | timedelta  # seconds, or a timedelta


class Middleware(Protocol):
    """Runs around a job: calls `call_next()` to run it, and returns what the job returns."""

    def __call__(self, job: RunningJob, call_next: Callable[[], Any], /) -> object: ...


IN_CODE = ("middleware", "retry_on", "fail_on", "upgrade")  # options that only a declaration has


class Options(TypedDict, total=False):
    """Options of a job, both in @app.job(...) and in .using(...)."""

    queue: str
    connection: str
    tries: int
    timeout: Duration
    backoff: Duration | Sequence[Duration] | Backoff | Literal["exponential"]
    jitter: float  # up to this share of each backoff is added to it
    retry_on: type[Exception] | Sequence[type[Exception]]  # any other error fails the job at once
    fail_on: type[Exception] | Sequence[type[Exception]]  # such an error fails the job at once
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
    encrypted: bool  # its arguments are encrypted, with [encryption] keys


class SendOptions(Options, total=False):
    """Options of one dispatch. delay: seconds from now, or a datetime with a time zone."""

    delay: Duration | datetime
    key: str
    after_commit: bool


class Plan:
    """How one job is sent: its declaration, and the options of the declaration and of .using(...).

    routes: the sender's cache of what follows from declaration and options; shared by plans that differ in the delay only.
    """

    __slots__ = ("after_commit", "custom_send", "declared", "delay", "key", "options", "routes")

    def __init__(self, declared: Declared, options: JobOptions) -> None:
        if options.unique is not None or options.display_name is not None:
            patterns(declared, options)  # report an unknown name in them at the declaration
        self.declared = declared
        self.options = options
        self.delay: Duration | datetime | None = None
        self.key: str | None = None
        self.after_commit: bool | None = None
        self.custom_send: Callable[[Any], object] | None = None  # called with a Queue instead of the push
        self.routes: list[Any] = []

    def using(self, given: Mapping[str, Any]) -> Plan:
        options, name = dict(given), self.declared.name
        delay, key = options.pop("delay", self.delay), options.pop("key", self.key)
        after_commit = options.pop("after_commit", self.after_commit)
        for fixed in ("raw", "encrypted", "version"):
            if options.get(fixed, declared := getattr(self.declared.options, fixed)) != declared:
                raise DeclarationError(f"using() cannot change {fixed}: set it in @app.job({fixed}=...)")
        if code := [name for name in IN_CODE if name in options]:
            raise DeclarationError(f"using() takes no {code[0]} (a payload carries no code): set it in @app.job()")
        if key is not None and not (isinstance(key, str) and key.strip()):
            raise DeclarationError(f"option key of job '{name}': {key!r} is no name (written 'order:42')")
        if not isinstance(after_commit, bool | None):
            raise DeclarationError(f"option after_commit of job '{name}': {after_commit!r} is neither True nor False")
        read = JobOptions.read(options, name, ("delay", "key", "after_commit")) if options else None
        plan = Plan(self.declared, read.over(self.options) if read else self.options)
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


class Place(NamedTuple):
    """Where jobs are sent, for a handle made from an id alone. connection: None is the default one. declared: None if the
    job is not known."""

    connection: str | None
    queue: str
    declared: Declared | None = None


Status = Literal["ready", "delayed", "running", "done", "failed", "unknown"]
NewEvents = tuple[list[JobEvent], Status | None]  # and how the job has ended, if it has and there are no more


class EventStream:
    """The events of a job, for `async for` and `for`. Missing numbers are events that are no longer kept.

    Attributes:
        since: The number of the last event that it has returned, to resume after it.
        status: "done", "failed" or "unknown" once it has found that the job has ended; None before.
    """

    def __init__(self, read: Callable[[int], Pausing[NewEvents]], since: int, *, once: bool) -> None:
        self._read, self._once, self._ended, self.since = read, once, False, since
        self.status: Status | None = None

    def __iter__(self) -> Iterator[JobEvent]:
        while not self._ended:
            yield from self._new(block_on(self._read(self.since)))

    async def __aiter__(self) -> AsyncIterator[JobEvent]:
        while not self._ended:
            for event in self._new(await wait_for(self._read(self.since))):
                yield event

    def _new(self, found: NewEvents) -> Iterator[JobEvent]:
        events, self.status = found
        self._ended = self._once or self.status is not None
        for event in events:
            self.since = event.number
            yield event


class JobLookup(Protocol):
    """Status, result, progress and cancellation of jobs, by id."""

    def status(self, id: str) -> Status: ...

    def result(self, id: str, timeout: float | None) -> Pausing[Any]: ...

    def record(self, id: str) -> Kept | None: ...

    def events(self, id: str, since: int, wait: float | None) -> Pausing[NewEvents]: ...

    def cancel(self, id: str) -> bool: ...


class Sender(Protocol):
    """Sends and runs jobs: the app's Dispatcher."""

    def send(self, plan: Plan, data: bytes) -> str:
        """Send one job. Returns its id."""

    async def asend(self, plan: Plan, data: bytes) -> str:
        """As send, for the tasks of an event loop."""

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run one job in this process. Returns what it returned."""

    def in_transaction(self, plan: Plan) -> bool:
        """Whether a job sent by this plan is part of an open transaction."""

    def lookup(self, at: Plan | Place) -> JobLookup:
        """The lookup of jobs sent by this plan, or to this place."""

    def place(self, plan: Plan) -> Place:
        """Where jobs of this plan are sent."""


def waiting_time(timeout: Duration | None, method: str = "result()") -> float | None:
    """The timeout of `method` in seconds. Raises ArgumentError."""
    return None if timeout is None else seconds_of(f"timeout of {method}", timeout, ArgumentError)


class Handle(Generic[T_co]):
    """A job that was sent. `id` is also in current_job() and in the log lines.

    Each method may raise ConnectionLost and ServerRefused.
    """

    __slots__ = ("_at", "_sender", "id")

    def __init__(self, id: str, sender: Sender | None = None, at: Plan | Place | None = None) -> None:
        self.id: Final[str] = id
        self._sender, self._at = sender, at

    def status(self) -> Status:
        """Its current status. A job that succeeded is "unknown" if it has no result_ttl.

        The search for a waiting job scans its queue: do not call this in a loop on a long queue.
        """
        return self._lookup().status(self.id)

    def result(self, timeout: Duration | None = None) -> T_co:
        """Wait until the job has ended, for at most `timeout` seconds (None: no limit), and return its result.

        Raises:
            ResultTimeout: It did not end in time and keeps running.
            JobFailedError: It has failed, or was cancelled.
            NoResult: It keeps no result (result_ttl), or the result has expired.
        """
        return block_on(self._result(timeout))

    async def aresult(self, timeout: Duration | None = None) -> T_co:
        """As result(), without blocking the event loop."""
        return await wait_for(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Pausing[T_co]:
        return self._lookup().result(self.id, waiting_time(timeout))

    def progress(self) -> float | None:
        """The percentage the job reported last, 100 once it is done. None: nothing reported, or no result_ttl."""
        record = self._lookup().record(self.id)
        return None if record is None else record.percent

    def progress_details(self) -> dict[str, Any]:
        """What the job reported with its last progress(): {"message": "scaling", "step": 3}; {} if nothing."""
        record = self._lookup().record(self.id)
        return {} if record is None else dict(record.details)

    def events(self, since: int = 0, *, wait: Duration | None = None) -> EventStream:
        """Its events: `async for event in app.handle(id).events(since=7): print(event.number, event.data)`. Or `for`.

        Args:
            since: Only events with a higher number; 0: all that are kept.
            wait: Read once, as soon as there are events, or after this many seconds. None: until the job has ended.

        Raises:
            ArgumentError: `since` or `wait` is invalid.
            ConnectionLost: While iterating; without `wait` after a minute.
        """
        if isinstance(since, bool) or not isinstance(since, int) or not 0 <= since < 1 << 53:
            raise ArgumentError(f"events() takes the number of an event as since, 0 or more, not {since!r}")
        seconds = None if wait is None else seconds_of("wait of events()", wait, ArgumentError)
        lookup = self._lookup()
        return EventStream(lambda after: lookup.events(self.id, after, seconds), since, once=wait is not None)

    def cancel(self) -> bool:
        """Cancel a waiting job, or stop a running one with JobCancelled. The search for a waiting job scans its queue.

        Returns:
            True if it will not run or is being stopped; False if it has ended, is unknown, or another program runs it.
        """
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
