"""What a test reads: plain records made of what would have been sent.

`app.fake()`: what would have been sent is written down instead, and read back as plain records.

Everything before the connection is as in production: arguments are bound, encoded and checked, delays read, payloads made
and measured. Only the way out is another one, and the settings are those that are built in.

What an app is given in place of its own for the length of a block: settings, connections, the way out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
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
from qd.jobs.plan import Plan, SendOptions
from qd.jobs.registry import Declared, DeclaredRaw
from qd.options.kinds import span
from qd.options.tables import JOB_KINDS
from qd.payload.format import ChainedJob, Relations, read
from qd.testing.queue import MemoryLocks, Waiting


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A job that was dispatched. arguments: by name, as the worker would get them; defaults do not travel.

    options: what the declaration and using() say; durations in seconds, a moment as it was given. id: the handle's.
    """

    arguments: dict[str, Any]
    options: SendOptions
    name: str
    id: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What app.queue(...) was given. push_raw: job is "", and data the bytes. delay: seconds, 0 for at once."""

    queue: str
    job: str
    data: Any
    delay: float


@dataclass(frozen=True, slots=True)
class Chained:
    """A chain that was dispatched: its jobs in order, and what is sent when one of them fails."""

    jobs: list[Dispatched]
    catch: Dispatched | None


@dataclass(frozen=True, slots=True)
class Batched:
    """A batch that was dispatched: its jobs in order, and what is sent when they have ended."""

    jobs: list[Dispatched]
    then: Dispatched | None
    catch: Dispatched | None
    finally_: Dispatched | None
    name: str
    allow_failures: bool
    id: str = field(compare=False)


def batched(
    new: NewBatch, jobs: list[Message], then: Message | None, catch: Message | None, last: Message | None
) -> Batched:
    after = [None if each is None else dispatched(each) for each in (then, catch, last)]
    return Batched(
        jobs=[dispatched(each) for each in jobs],
        then=after[0],
        catch=after[1],
        finally_=after[2],
        name=new.name,
        allow_failures=new.allow_failures,
        id=new.id,
    )


def chained(first: Message, rest: list[Message], catch: list[Message]) -> Chained:
    return Chained([dispatched(each) for each in (first, *rest)], dispatched(catch[0]) if catch else None)


def dispatched(message: Message) -> Dispatched:
    assert message.plan is not None
    declared = message.plan.declared
    return Dispatched(arguments(declared, message.data), options(message.plan), declared.name, message.id)


def pushed(message: Message) -> Pushed:
    data = msgspec.json.decode(message.data or b'""') if message.name else message.body
    return Pushed(message.queue, message.name, data, message.delay)


def arguments(declared: Declared, data: bytes) -> dict[str, Any]:
    if isinstance(declared, DeclaredRaw):
        return {declared.signature.parameters[0].name: decode_value(data)}
    return declared.signature.decode(data)


def options(plan: Plan) -> SendOptions:
    said = {name: value for name in JOB_KINDS if (value := getattr(plan.options, name)) is not None}
    if plan.delay is not None:
        said["delay"] = plan.delay if isinstance(plan.delay, datetime) else span(plan.delay)
    if plan.key is not None:
        said["key"] = plan.key
    if plan.after_commit is not None:
        said["after_commit"] = plan.after_commit
    return cast(SendOptions, said)


AnyJob = JobFunction[..., Any, Any] | type[Job[Any]]


class Fake:
    """What would have been sent since the block began, in order. Asking changes nothing. May be used from any thread."""

    def __init__(self, services: Services) -> None:
        self._registry, self._handlers = services.registry, services.handlers
        self._lock = threading.Lock()
        self._waiting = Waiting()
        self._made: dict[str, Message] = {}  # by id: those that are sent later, by a chain or a batch, too
        self._kept = MemoryBatches()

    def dispatched(self, job: AnyJob | type) -> list[Dispatched]:
        """The calls of this job, or of the handler of commands of this class, that are sent now: of a chain only the first.

        Raises ArgumentError: it is no job of this app.
        """
        declared = self._declared(job)
        return [
            dispatched(each) for each in self._waiting.all() if each.plan is not None and each.plan.declared is declared
        ]

    def all(self) -> list[Dispatched]:
        """The calls of every job."""
        return [dispatched(each) for each in self._waiting.all() if each.plan is not None]

    @property
    def chains(self) -> list[Chained]:
        """The chains, of at least two jobs or with something that catches."""
        return [
            chained(each, *self._behind(each))
            for each in self._waiting.all()
            if each.relations and is_chain(each.relations)
        ]

    @property
    def batches(self) -> list[Batched]:
        """The batches, each with all the jobs that were sent with it and added to it."""
        return [self._batched(kept.new) for kept in self._kept.kept.values()]

    def pushed(self, queue: str) -> list[Pushed]:
        """What app.queue(queue).push and push_raw were given."""
        return [pushed(each) for each in self._waiting.all() if each.plan is None and each.queue == queue]

    def clear(self) -> None:
        """Forget what was sent until now."""
        self._waiting.clear()
        self._kept.kept.clear()

    def _submit_now(self, messages: Sequence[Message], push: Push | None = None) -> list[str]:
        """push: of a batch, which is kept in memory instead."""
        if push is not None:
            push(messages)
        self._waiting.add(messages)
        return [message.id for message in messages]

    def _remember(self, message: Message) -> None:
        with self._lock:
            self._made[message.id] = message

    def _behind(self, message: Message) -> tuple[list[Message], list[Message]]:
        """What comes after it has succeeded, and what after one of them has failed."""
        relations = message.relations or Relations()
        return [self._linked(link) for link in relations.chain], [self._linked(link) for link in relations.catch]

    def _batched(self, new: NewBatch) -> Batched:
        jobs = [each for each in self._waiting.all() if each.relations is not None and each.relations.batch == new.id]
        then, catch, last = (self._called_back(new, what) for what in ("then", "catch", "finally"))
        return batched(new, jobs, then, catch, last)

    def _called_back(self, new: NewBatch, what: str) -> Message | None:
        callback = new.callbacks.get(what)
        return callback and self._made[read(callback.payload).id or ""]

    def _linked(self, link: ChainedJob) -> Message:
        return self._made[read(link.payload.encode()).id or ""]

    def _declared(self, job: AnyJob) -> Declared:
        found = declared_of(job) or self._handlers.declared(job)
        if found is None or self._registry.get(found.name) is not found:
            raise ArgumentError(f"{job!r} is no job of this app: give what @app.job made, or a class of commands")
        return found

    def __repr__(self) -> str:
        return f"<fake: {len(self._waiting.all())} jobs>"


def is_chain(relations: Relations) -> bool:
    return bool(relations.chain or relations.catch)


def declared_of(job: object) -> Declared | None:
    if isinstance(job, JobFunction):
        return job._plan.declared
    if isinstance(job, type) and issubclass(job, Job) and job._declared_as is not None:
        return job._declared_as[1].declared
    return None


@contextmanager
def faked(services: Services) -> Iterator[Fake]:
    """In the block the app's jobs go to the Fake, whichever thread sends them. A block in a block has a Fake of its own,
    and the outer one hears nothing meanwhile."""
    fake = Fake(services)
    with staged(services, fake._submit_now, fake._remember, fake._waiting, fake._kept):
        yield fake


class Unread(Settings):
    """Settings that were read nowhere: every connection is there, and its queue is "default"."""

    __slots__ = ()

    def connection(self, name: str | None = None) -> ConnectionSettings:
        return ConnectionSettings(name or self.default, url="fake://")


class Stored(Lenient):
    """app.lock() is kept in memory; places of middleware and limits let everything through."""

    def __init__(self) -> None:
        self._locks = MemoryLocks()
        self.get, self.pop = self._locks.get, self._locks.pop

    def step(self, script: str, names: Sequence[str], *words: str | int) -> object:
        known = script in self._locks.steps
        return self._locks.step(script, names, *words) if known else super().step(script, names, *words)


class Nowhere(LocalConnection):
    """A connection without a server: it has the jobs and the batches of a fake, and a store in which only locks stand."""

    def __init__(self, jobs: Waiting, batches: MemoryBatches, store: Stored) -> None:
        super().__init__(batches)
        self.store = store
        self.jobs = jobs
        self.cancel_keyed, self.move_keyed, self.keyed_due = jobs.cancel_keyed, jobs.move_keyed, jobs.keyed_due

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:  # whatever else a connection can do
        raise QdError(
            f"app.fake() and app.inline() ask no server ('{name}'): what needs one is tested with the fixture qd_worker"
        )


@contextmanager
def staged(
    services: Services,
    post: Callable[..., list[str]],
    note: Callable[[Message], None],
    jobs: Waiting,
    batches: MemoryBatches,
) -> Iterator[None]:
    """In the block no file and no variable is read and no server asked, whatever thread sends. post: takes what is sent,
    with after_commit=True when that would have been. note: sees each job that is made, to be sent now or later."""
    send: Any = services.dispatcher
    before = services.connections.make, send._submit_now, send.prepare, send._hand_over
    store = Stored()
    services.connections.make = lambda settings, name: cast(Any, Nowhere(jobs, batches, store))
    send._submit_now, send.prepare = post, partial(noted, send.prepare, note)
    send._hand_over = lambda message: post((message,))  # a class's own send() would send it
    try:
        with services.using(unread(services)):
            yield
    finally:
        services.connections.make, send._submit_now, send.prepare, send._hand_over = before


def unread(services: Services) -> Settings:
    built_in = config.unread(services.code())
    return Unread(**{each.name: getattr(built_in, each.name) for each in fields(Settings)})


def noted(make: Callable[..., Message], note: Callable[[Message], None], *about: object) -> Message:
    made = make(*about)
    note(made)
    return made
