"""How a job is sent: the words for it (Options, SendOptions), the Plan they become, the Sender, and the Handle it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from qd.arguments.signature import Pattern
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.registry import Declared
from qd.options.kinds import span_in_code
from qd.options.tables import JobOptions

if TYPE_CHECKING:
    from qd.jobs.context import RunningJob


T_co = TypeVar("T_co", covariant=True)

Duration = float | timedelta  # seconds, or a timedelta


class Middleware(Protocol):
    """Stands around a job: does something, calls `call_next()` or does not, and returns what the job returns."""

    def __call__(self, job: RunningJob, call_next: Callable[[], Any], /) -> object: ...


class Options(TypedDict, total=False):
    """What a job is: the same words in @app.job(...) and in .using(...)."""

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
    unique: str  # "order:{order_id}", filled from the arguments
    unique_for: Duration
    unique_until: Literal["start", "done"]
    middleware: Sequence[Middleware]
    result_ttl: Duration
    delete_when_missing: bool
    raw: bool


class SendOptions(Options, total=False):
    """And how one is sent. delay: from now, or a moment (with its time zone)."""

    delay: Duration | datetime
    key: str
    after_commit: bool


class Plan:
    """How one is sent: the declared job, what its declaration and .using(...) say.

    notes: the sender's, on what follows from declaration and options; shared by plans that differ in the delay only.
    """

    __slots__ = ("after_commit", "by", "declared", "delay", "key", "notes", "options")

    def __init__(self, declared: Declared, options: JobOptions) -> None:
        if options.unique is not None or options.display_name is not None:
            patterns(declared, options)  # a name in them that is wrong is told at the declaration
        self.declared = declared
        self.options = options
        self.delay: Duration | datetime | None = None
        self.key: str | None = None
        self.after_commit: bool | None = None
        self.by: Callable[[Any], object] | None = None  # called with its bus.send.Queue, in place of the push
        self.notes: list[Any] = []

    def using(self, given: Mapping[str, Any]) -> Plan:
        said = dict(given)
        delay, key = said.pop("delay", self.delay), said.pop("key", self.key)
        after_commit = said.pop("after_commit", self.after_commit)
        if said.get("raw", self.declared.options.raw) != self.declared.options.raw:
            raise DeclarationError("raw is a matter of the declaration: say it in @app.job(raw=...), not in using()")
        if "middleware" in said:
            raise DeclarationError(
                "functions do not travel: say middleware in @app.job(middleware=[...]), not in using()"
            )
        if key is not None and not (isinstance(key, str) and key.strip()):
            raise DeclarationError(f"option key of job '{self.declared.name}': {key!r} is no name (written 'order:42')")
        if not isinstance(after_commit, bool | None):
            raise DeclarationError(
                f"option after_commit of job '{self.declared.name}': {after_commit!r} is neither True nor False"
            )
        plan = Plan(
            self.declared, JobOptions.read(said, self.declared.name).over(self.options) if said else self.options
        )
        plan.delay, plan.key, plan.after_commit = delay, key, after_commit
        if not said:
            plan.notes = self.notes
        return plan


def patterns(declared: Declared, options: JobOptions) -> tuple[Pattern | None, Pattern | None]:
    """display_name and unique, to be filled from the arguments. Raises DeclarationError."""
    said = (("display_name", options.display_name), ("unique", options.unique))
    if options.unique_for == 0:
        raise DeclarationError(
            f"option unique_for of {declared.signature.title}: a lock that is held for 0 seconds keeps nobody away"
        )
    display, unique = [None if text is None else Pattern(name, text, declared.signature) for name, text in said]
    return display, unique


Status = Literal["ready", "delayed", "running", "done", "failed", "unknown"]


class Place(NamedTuple):
    """Where jobs are sent: what a handle needs that was made of an id alone. connection: None is the default one."""

    connection: str | None
    queue: str


class Asks(Protocol):
    """What became of a job, by its id."""

    def status(self, id: str) -> Status: ...

    def result(self, id: str, timeout: float | None) -> Any: ...

    def progress(self, id: str) -> float | None: ...

    def cancel(self, id: str) -> bool: ...


class Sender(Protocol):
    """The way out, as app.py hands it in."""

    def send(self, plan: Plan, data: bytes) -> str:
        """Send one; its id."""

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run it here and now; what it returned."""

    def ask(self, at: Plan | Place) -> Asks:
        """Who knows what became of jobs that were sent so, or there."""


def waiting_time(timeout: Duration | None) -> float | None:
    """What result() was given, in seconds. Raises ArgumentError."""
    try:
        return None if timeout is None else span_in_code(timeout)
    except ValueError as error:
        raise ArgumentError(f"timeout of result(): {error}") from None


class Handle(Generic[T_co]):
    """A job that was sent. id: what current_job().id is while it runs, and what the log lines name.

    Nothing is asked of the server before a method is called. Each of them may raise ConnectionLost and ServerRefused.
    """

    __slots__ = ("_at", "_sender", "id")

    def __init__(self, id: str, sender: Sender | None = None, at: Plan | Place | None = None) -> None:
        self.id: Final[str] = id
        self._sender, self._at = sender, at

    def status(self) -> Status:
        """Where it is now. Without result_ttl a job that has ended well is "unknown". A job that waits is looked for in
        its queue, which takes the longer the longer that is."""
        return self._asks().status(self.id)

    def result(self, timeout: Duration | None = None) -> T_co:
        """What the job returned, waited for: for `timeout` seconds at most, None: until it has ended.

        Raises TimeoutError; JobFailedError when the job has failed, or was cancelled; NoResult when it keeps none
        (result_ttl), or it has expired.
        """
        return self._asks().result(self.id, waiting_time(timeout))  # type: ignore[no-any-return]

    async def aresult(self, timeout: Duration | None = None) -> T_co:
        """The same, waited for in a thread: the loop goes on meanwhile."""
        import asyncio  # who awaits has loaded it; who does not need not

        return await asyncio.to_thread(self.result, timeout)

    def progress(self) -> float | None:
        """The percent that the job said last, 100 once it is done; None: none yet, or it keeps no result (result_ttl)."""
        return self._asks().progress(self.id)

    def cancel(self) -> bool:
        """See to it that it does not run, or not to its end. True: it will not run any more, or runs and was told to end.
        False: it had ended, nobody knows it, or a program that is not qd runs it. A job that waits is looked for in its
        queue, which takes the longer the longer that is."""
        return self._asks().cancel(self.id)

    def _asks(self) -> Asks:
        if self._sender is None or self._at is None:
            raise DeclarationError(f"{self!r} knows no queue: app.handle(id, queue=...) makes one that does")
        return self._sender.ask(self._at)

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"
