"""`app.fake()`: records what would have been sent, and returns it as plain records.

Everything before the connection is as in production: arguments are bound, encoded and checked, delays read, payloads built
and measured. staged() replaces the connections and the settings of the app, which are the built-in defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, NoReturn, cast

import msgspec

from qd import config
from qd.arguments.values import decode_value
from qd.config.settings import ConnectionSettings, Settings
from qd.dispatch.dispatcher import Push
from qd.dispatch.local import Lenient, LocalConnection, MemoryBatches
from qd.dispatch.route import Message
from qd.dispatch.services import Services
from qd.drivers.types import NewBatch
from qd.errors import ArgumentError, QdError
from qd.jobs.job import Job, JobFunction
from qd.jobs.plan import SendOptions
from qd.jobs.registry import Declared, DeclaredRaw
from qd.options.kinds import span
from qd.options.tables import JOB_KINDS
from qd.payload.format import ChainedJob, read
from qd.testing.queue import MemoryLocks, Waiting


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A job that was dispatched. arguments: by name, as the worker would get them, without defaults. id: of its handle.

    options: from the declaration and using(); durations in seconds, a datetime unchanged.
    """

    arguments: dict[str, Any]
    options: SendOptions
    name: str
    id: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Pushed:
    """A job sent by app.queue(...). push_raw: job is "", and data the bytes. delay: seconds."""

    queue: str
    job: str
    data: Any
    delay: float


@dataclass(frozen=True, slots=True)
class Chained:
    """A chain that was dispatched: its jobs in order, and the job that is sent when one of them fails."""

    jobs: list[Dispatched]
    catch: Dispatched | None


@dataclass(frozen=True, slots=True)
class Batched:
    """A batch that was dispatched: its jobs in order, and its callbacks."""

    jobs: list[Dispatched]
    then: Dispatched | None
    catch: Dispatched | None
    finally_: Dispatched | None
    name: str
    allow_failures: bool
    id: str = field(compare=False)


def dispatched(message: Message) -> Dispatched:
    assert message.plan is not None
    plan, declared = message.plan, message.plan.declared
    if isinstance(declared, DeclaredRaw):
        arguments = {declared.signature.parameters[0].name: decode_value(message.data)}
    else:
        arguments = declared.signature.decode(message.data)
    options = {name: value for name in JOB_KINDS if (value := getattr(plan.options, name)) is not None}
    options |= {name: value for name in ("key", "after_commit") if (value := getattr(plan, name)) is not None}
    if plan.delay is not None:
        options["delay"] = plan.delay if isinstance(plan.delay, datetime) else span(plan.delay)
    return Dispatched(arguments, cast(SendOptions, options), declared.name, message.id)


AnyJob = JobFunction[..., Any, Any] | type[Job[Any]]


class Fake:
    """The jobs that would have been sent since the block began, in order. May be used from any thread."""

    def __init__(self, services: Services) -> None:
        self._registry, self._handlers = services.registry, services.handlers
        self._waiting = Waiting()
        self._made: dict[str, Message] = {}  # by id; also those that a chain or a batch sends later
        self._kept = MemoryBatches()

    def dispatched(self, job: AnyJob | type) -> list[Dispatched]:
        """The dispatched calls of this job, or of the handler of this command class; of a chain only the first.

        Raises ArgumentError if it is not a job of this app.
        """
        declared = self._declared(job)
        return [dispatched(each) for each in self._waiting.all() if each.plan and each.plan.declared is declared]

    def all(self) -> list[Dispatched]:
        """The calls of every job."""
        return [dispatched(each) for each in self._waiting.all() if each.plan is not None]

    @property
    def chains(self) -> list[Chained]:
        """The chains that have at least two jobs or a `catch` job."""
        found = list[Chained]()
        for first in self._waiting.all():
            if (relations := first.relations) and (relations.chain or relations.catch):
                jobs = [dispatched(each) for each in (first, *map(self._linked, relations.chain))]
                catch = dispatched(self._linked(relations.catch[0])) if relations.catch else None
                found.append(Chained(jobs, catch))
        return found

    @property
    def batches(self) -> list[Batched]:
        """The batches, each with all jobs that were sent in it or added to it."""
        return [self._batched(kept.new) for kept in self._kept.kept.values()]

    def pushed(self, queue: str) -> list[Pushed]:
        """The jobs sent by app.queue(queue).push and push_raw."""
        return [
            Pushed(queue, each.name, msgspec.json.decode(each.data or b'""') if each.name else each.body, each.delay)
            for each in self._waiting.all()
            if each.plan is None and each.queue == queue
        ]

    def clear(self) -> None:
        """Forget what was sent until now."""
        self._waiting.clear()
        self._kept.kept.clear()

    def _submit_now(self, messages: Sequence[Message], push: Push | None = None) -> list[str]:
        """push: stores a batch in memory."""
        if push is not None:
            push(messages)
        self._waiting.add(messages)
        return [message.id for message in messages]

    def _remember(self, message: Message) -> None:
        self._made[message.id] = message

    def _batched(self, new: NewBatch) -> Batched:
        jobs = [each for each in self._waiting.all() if each.relations is not None and each.relations.batch == new.id]
        callbacks = (self._called_back(new, what) for what in ("then", "catch", "finally"))
        then, catch, finally_ = (None if message is None else dispatched(message) for message in callbacks)
        return Batched([dispatched(each) for each in jobs], then, catch, finally_, new.name, new.allow_failures, new.id)

    def _called_back(self, new: NewBatch, what: str) -> Message | None:
        callback = new.callbacks.get(what)
        return callback and self._made[read(callback.payload).id or ""]

    def _linked(self, link: ChainedJob) -> Message:
        return self._made[read(link.payload.encode()).id or ""]

    def _declared(self, job: AnyJob) -> Declared:
        found = declared_of(job) or self._handlers.declared(job)
        if found is None or self._registry.get(found.name) is not found:
            way = "pass a job that @app.job declared, or a command class"
            raise ArgumentError(f"{job!r} is not a job of this app: {way}")
        return found

    def __repr__(self) -> str:
        return f"<fake: {len(self._waiting.all())} jobs>"


def declared_of(job: object) -> Declared | None:
    if isinstance(job, JobFunction):
        return job._plan.declared
    if isinstance(job, type) and issubclass(job, Job) and job._declared_as is not None:
        return job._declared_as[1].declared
    return None


@contextmanager
def faked(services: Services) -> Iterator[Fake]:
    """In the block the app's jobs go to the Fake, from any thread. A nested block has its own Fake, and the outer one
    records nothing meanwhile."""
    fake = Fake(services)
    with staged(services, fake._submit_now, fake._remember, fake._waiting, fake._kept):
        yield fake


class Unread(Settings):
    """Settings that are not read from anywhere: every connection exists, with the queue "default"."""

    __slots__ = ()

    def connection(self, name: str | None = None) -> ConnectionSettings:
        return ConnectionSettings(name or self.default, url="fake://")


class Stored(Lenient):
    """Keeps app.lock() in memory; limits of middleware let every job through."""

    def __init__(self) -> None:
        self._locks = MemoryLocks()
        self.get, self.pop = self._locks.get, self._locks.pop

    def step(self, script: str, names: Sequence[str], *words: str | int) -> object:
        known = script in self._locks.steps
        return self._locks.step(script, names, *words) if known else super().step(script, names, *words)


class Nowhere(LocalConnection):
    """A connection without a server: it has the jobs and batches of a fake, and a store with locks only."""

    def __init__(self, jobs: Waiting, batches: MemoryBatches, store: Stored) -> None:
        super().__init__(batches)
        self.store = store
        self.jobs = jobs
        self.cancel_keyed, self.move_keyed, self.keyed_due = jobs.cancel_keyed, jobs.move_keyed, jobs.keyed_due

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:  # whatever else a connection can do
        raise QdError(f"app.fake() and app.inline() have no server ('{name}'): use the fixture qd_worker to test this")


@contextmanager
def staged(
    services: Services,
    post: Callable[..., list[str]],
    note: Callable[[Message], None],
    jobs: Waiting,
    batches: MemoryBatches,
) -> Iterator[None]:
    """In the block no thread reads a file or variable, or connects to a server. post: receives the messages when they would
    have been sent, also after a commit. note: receives each message that is built, to be sent now or later."""
    send: Any = services.dispatcher
    before = services.connections.make, send._submit_now, send.prepare, send._hand_over
    store = Stored()
    services.connections.make = lambda settings, name: cast(Any, Nowhere(jobs, batches, store))

    def prepare(*about: object) -> Message:
        message: Message = before[2](*about)
        note(message)
        return message

    send._submit_now, send.prepare = post, prepare
    send._hand_over = lambda message: post((message,))  # a class's own send() would send it
    try:
        built_in = config.unread(services.code())
        with services.using(Unread(**{each.name: getattr(built_in, each.name) for each in fields(Settings)})):
            yield
    finally:
        services.connections.make, send._submit_now, send.prepare, send._hand_over = before
