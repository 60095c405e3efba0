"""For tests of apps.

app.fake()      records what would have been sent, and returns it as plain records. Everything before the connection is as in
                production: arguments are bound, encoded and checked, delays read, payloads built and measured
app.inline()    runs each job when it is dispatched, in that thread, with conversion, middleware and events. A delay is
                ignored, and a job that releases itself runs again. An error ends the job, as in run(): dispatch() raises it
                after failed(), the listeners and the `catch` job of a chain

staged() replaces the connections and the settings of the app, which are the built-in defaults:

Fake, Inline   what app.fake() and app.inline() return
Waiting     the jobs that were sent: found by id, moved and cancelled by key, with their results
Stored      what the scripts of a Mutex do, for the threads of this process
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec.structs import replace

from qd.arguments.values import decode_value
from qd.config.load import unread
from qd.config.settings import ConnectionSettings, Settings
from qd.dispatch import local
from qd.dispatch.dispatcher import Push as PushBatch
from qd.dispatch.route import Message, opened
from qd.dispatch.services import Services
from qd.drivers.send_only import always
from qd.drivers.types import SPOTS, Count, Effect, Found, Keep, Kept, NewBatch, Push, Spot
from qd.errors import ArgumentError, QdError
from qd.jobs.context import RunningJob
from qd.jobs.job import Job, JobFunction, plan_of
from qd.jobs.plan import Plan, SendOptions
from qd.jobs.policy import Release
from qd.jobs.registry import Declared, DeclaredRaw
from qd.options.kinds import count, span
from qd.options.tables import JOB_KINDS
from qd.payload.format import ChainedJob, read

POLL = 0.02  # seconds between two attempts to take a lock


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A job that was dispatched. arguments: by name, as the worker would get them, without defaults. id: of its handle.
    options: from the declaration and using(); durations in seconds, a datetime unchanged."""

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
    elif (relations := message.relations) and relations.takes is not None:  # without the result of the job before it
        given = cast(dict[str, object], decode_value(message.data))
        arguments = {name: declared.signature.converted(name, value) for name, value in given.items()}
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
        self._services = services
        self._waiting = Waiting()
        self._made: dict[str, Message] = {}  # by id; also those that a chain or a batch sends later
        self._kept = local.MemoryBatches()

    def dispatched(self, job: AnyJob | type) -> list[Dispatched]:
        """The dispatched calls of this job, or of the handler of this command class; of a chain only the first. Raises
        ArgumentError if it is not a job of this app."""
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

    def _submit_now(self, messages: Sequence[Message], push: PushBatch | None = None) -> list[str]:
        """push: stores a batch in memory."""
        if push is not None:
            push(messages)
        self._waiting.add(messages)
        return [message.id for message in messages]

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
        plan = plan_of(job)
        found = self._services.handlers.declared(job) if plan is None else plan.declared
        if found is None or self._services.registry.get(found.name) is not found:
            way = "pass a job that @app.job declared, or a command class"
            raise ArgumentError(f"{job!r} is not a job of this app: {way}")
        return found

    def __repr__(self) -> str:
        return f"<fake: {count(len(self._waiting.all()), 'job')}>"


class Waiting:
    """The methods of a connection for single jobs (base.Jobs, and a Connector's keyed ones). For any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._messages: list[Message] = []
        self._sent_at: dict[str, float] = {}  # by id
        self.begun: set[str] = set()  # ids of jobs that run, or have run
        self._kept: dict[str, Kept] = {}

    def all(self) -> list[Message]:
        """In the order in which they were sent."""
        with self._lock:
            return self._messages.copy()

    def clear(self) -> None:
        with self._lock:
            for each in (self._messages, self._sent_at, self.begun, self._kept):
                each.clear()

    def add(self, messages: Sequence[Message]) -> None:
        """A job with a key replaces the one that waits under it."""
        with self._lock:
            for message in messages:
                if name := key_name(message):
                    self.cancel_keyed(message.queue, name)
                self._messages.append(message)
                self._sent_at[message.id] = time.time()

    def keep(self, end: Keep) -> None:
        """Keep how a job has ended, with the progress it reported."""
        before = self._kept.get(end.id) or Kept(None, b"", None, None)
        self._kept[end.id] = before._replace(status=end.status, value=end.value, at=time.time())

    def cancel_keyed(self, queue: str, name: str) -> bool:
        return self._change(self._under(queue, name), None)

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        found = self._under(queue, name)
        if found is None or found.plan is None:
            return False
        self._sent_at[found.id] = time.time()
        return self._change(found, replace(found, delay=delay, plan=found.plan.using({"delay": delay})))

    def keyed_due(self, queue: str, name: str) -> float | None:
        found = self._under(queue, name)
        return None if found is None else self._sent_at[found.id] + found.delay

    def find(self, queue: str, id: str, spots: Sequence[Spot] = SPOTS) -> Found | None:
        found = self._first(lambda each: each.queue == queue and id in (each.id, each.uuid))
        spot: Spot = "delayed" if found and found.delay else "ready"
        return Found(queue, spot, found.body, read(found.body), None) if found and spot in spots else None

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        for effect in effects:
            if isinstance(effect, Keep):
                self.keep(effect)
        return self._change(self._first(lambda each: each.body == found.text), None)

    def stop(self, found: Found) -> bool:
        return False

    def kept(self, id: str) -> Kept | None:
        return self._kept.get(id)

    def kept_many(self, ids: Sequence[str]) -> list[Kept | None]:
        return list(map(self.kept, ids))

    def progress(self, id: str, percent: float, ttl: float, details: bytes = b"") -> None:
        self._kept[id] = Kept(None, b"", percent, None, decode_value(details or b"{}"))

    events = always([])

    def _under(self, queue: str, name: str) -> Message | None:
        return self._first(lambda each: each.queue == queue and key_name(each) == name)

    def _first(self, fits: Callable[[Message], bool]) -> Message | None:
        with self._lock:
            return next((each for each in self._messages if each.id not in self.begun and fits(each)), None)

    def _change(self, message: Message | None, new: Message | None) -> bool:
        """Replace a message by `new`, or delete it (None). Returns False if it no longer exists."""
        with self._lock:
            if message not in self._messages or message is None:
                return False
            at = self._messages.index(message)
            self._messages[at : at + 1] = [] if new is None else [new]
            return True


def key_name(message: Message) -> str:
    """The key that it waits under, or ""."""
    return ((message.relations and message.relations.key) or "").rpartition(" ")[2]


class Unread(Settings):
    """Settings that are not read from anywhere: every connection exists, with the queue "default"."""

    __slots__ = ()

    def connection(self, name: str | None = None) -> ConnectionSettings:
        return ConnectionSettings(name or self.default, url="fake://")


class Stored(local.Lenient):
    """A store for any thread. It keeps app.lock() in memory, where a free lock goes to the first that takes it; limits of
    middleware let every job through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owners: dict[str, tuple[str, float]] = {}  # lock -> owner, monotonic time at which it expires
        self._last = 0
        self._steps: dict[str, Any] = {"lock_take": self._take, "lock_give": self._give, "lease_extend": self._extend}

    def step(self, script: str, names: Sequence[str], *words: Any) -> Any:
        with self._changed:
            return self._steps[script](names, *words) if script in self._steps else super().step(script, names, *words)

    def get(self, *names: str) -> list[bytes | None]:
        with self._changed:
            return [owner.encode() if (owner := self._owner(name)) else None for name in names]

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """Returns when any lock is freed, and soon: it may have been freed before. Does not watch `wake`."""
        with self._changed:
            return self._changed.wait(min(seconds, POLL))

    def _owner(self, lock: str) -> str | None:
        owner, until = self._owners.get(lock, ("", 0.0))
        return owner if time.monotonic() < until else None

    def _take(self, names: Sequence[str], owner: str, held: int, stay: int, came: int, *spans: int) -> list[Any]:
        lock = names[0]
        if self._owner(lock) in (None, owner):
            self._owners[lock] = owner, time.monotonic() + held / 1000
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return [str(self._last)]
        has, until = self._owners[lock]
        return ["0", max(0, round((until - time.monotonic()) * 1000)), came, 0, has.encode(), b""]

    def _give(self, names: Sequence[str], owner: str, grant: int) -> list[Any]:
        if self._owner(names[0]) != owner:
            return [0, b""]
        del self._owners[names[0]]
        self._changed.notify_all()
        return [1, b""]

    def _extend(self, names: Sequence[str], owner: str, held: int) -> int:
        if self._owner(names[0]) != owner:
            return 0
        self._owners[names[0]] = owner, time.monotonic() + held / 1000
        return 1


class Nowhere(local.LocalConnection):
    """A connection without a server: it has the jobs and batches of a fake, and a store with locks only."""

    def __init__(self, fake: Fake, store: Stored) -> None:
        super().__init__(fake._kept)
        self.store, self.jobs = store, (jobs := fake._waiting)
        self.cancel_keyed, self.move_keyed, self.keyed_due = jobs.cancel_keyed, jobs.move_keyed, jobs.keyed_due

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:  # whatever else a connection can do
        raise QdError(f"app.fake() and app.inline() have no server ('{name}'): use the fixture qd_worker to test this")


F = TypeVar("F", bound=Fake)


@contextmanager
def staged(services: Services, fake: F) -> Iterator[F]:
    """In the block the fake receives the app's jobs, from any thread, when they would have been sent, also after a commit.
    No thread reads a file or variable, or connects to a server. In a nested block the outer fake records nothing."""
    send: Any = services.dispatcher
    before = services.connections.make, send._submit_now, send.prepare, send._hand_over
    store = Stored()
    services.connections.make = lambda settings, name: cast(Any, Nowhere(fake, store))

    def prepare(*about: object) -> Message:
        message: Message = before[2](*about)
        fake._made[message.id] = message  # to be sent now or later
        return message

    send._submit_now, send.prepare = fake._submit_now, prepare
    send._hand_over = lambda message: fake._submit_now((message,))  # a class's own send() would send it
    try:
        built_in = unread(services.code())
        with services.using(Unread(**{each.name: getattr(built_in, each.name) for each in fields(Settings)})):
            yield fake
    finally:
        services.connections.make, send._submit_now, send.prepare, send._hand_over = before


class InlinePolicy(local.Policy):
    """A job that releases itself runs again immediately, up to its tries. An error ends it."""

    def __init__(self, plan: Plan) -> None:
        self._name, self._tries = plan.declared.name, plan.options.tries or local.MOST_RUNS
        self._runs = 0

    def before(self) -> str | None:
        self._runs += 1
        if self.attempts > self._tries or self._runs > local.MOST_RUNS:
            return f"{self._name} was released until its tries were used up"
        return None

    def after_release(self, job: RunningJob, release: Release) -> None:
        self.attempts += release.counts


class Inline(Fake):
    """Runs each job, and records it as a Fake does. A job that is not declared here (of PHP, for example) is only
    recorded."""

    def _submit_now(self, messages: Sequence[Message], push: PushBatch | None = None) -> list[str]:
        sent, errors = super()._submit_now(messages, push), list[Exception]()
        for message in messages:
            try:
                local.outside_loop(partial(self._run, message))
            except Exception as error:
                if push is None:
                    raise
                batch = self._kept.kept[message.relations.batch or ""] if message.relations else None
                if batch is None or not batch.new.allow_failures:
                    errors.append(error)
        if push is not None and not messages:
            for id, kept in list(self._kept.kept.items()):
                if not kept.total:
                    errors += self._call_back(kept.new, self._kept.settled(id))
        if errors:
            raise errors[0]
        return sent

    def _run(self, message: Message) -> None:
        """Run it, what follows in its chain, and the callbacks of its batch. Raises the first error, at the end."""
        ahead, errors = deque([message]), list[Exception]()
        while ahead:
            each, effects = ahead.popleft(), list[Effect]()
            if each.plan is None:
                continue
            self._waiting.begun.add(each.id)
            try:
                self._attempts(each, each.plan, effects.append)
            except Exception as error:
                errors.append(error)
            for pushed in effects:
                if isinstance(pushed, Push):  # a job of a chain, with the rest of it
                    payload = read(pushed.payload)
                    next_one = self._made[payload.id or ""]
                    data = bytes(payload.data)
                    ahead.append(replace(next_one, body=pushed.payload, data=data, relations=payload.qd))
            errors += self._done(effects)
        if errors:
            raise errors[0]

    def _attempts(self, message: Message, plan: Plan, on_effect: Callable[[Effect], None]) -> None:
        declared, services = plan.declared, self._services
        payload = opened(read(message.body), declared, services.current_settings())
        ttl = message.relations and message.relations.result
        progress = (lambda *now: self._waiting.progress(message.id, now[0], ttl, now[1])) if ttl else None
        job = local.SentJob(payload, message.body, declared, message.connection, message.queue, services, progress)
        runner = local.LocalRunner(services.pipeline, services.listeners, InlinePolicy(plan), on_effect)
        runner.run(declared, job.attempt, payload)

    def _done(self, effects: Sequence[Effect]) -> list[Exception]:
        """Apply the effects in memory. Returns the errors of callbacks."""
        errors = list[Exception]()
        for effect in sorted(effects, key=lambda each: not isinstance(each, Keep)):  # a callback may ask for the result
            if isinstance(effect, Keep):
                self._waiting.keep(effect)
            elif isinstance(effect, Count):
                new = self._kept.kept[effect.id].new
                errors += self._call_back(new, self._kept.ended(effect.id, effect.job, effect.how))
        return errors

    def _call_back(self, new: NewBatch, due: Iterator[str]) -> list[Exception]:
        """Run the callbacks that are due. Returns their errors."""
        errors = list[Exception]()
        for what in due:
            try:
                if (callback := self._called_back(new, what)) is not None:
                    self._run(callback)
            except Exception as error:
                errors.append(error)
        return errors
