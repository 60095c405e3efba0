"""Sends every job of an app: a plan and its data -> Message -> connector.

    prepare    makes the Message; whatever is wrong with a job raises here
    submit     sends, one round trip per connection; jobs with after_commit=True once the open transaction is committed

Single, bulk, named and raw jobs, chains and batches all use these two.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from qd.arguments.values import encode_value
from qd.dispatch.local import LocalConnection, LocalRunner, MemoryBatches, Policy, refuse_in_a_loop
from qd.dispatch.results import SentJobs
from qd.dispatch.route import Message, PayloadHooks, Route, due_in, name_of, signing_of
from qd.drivers.base import Connector
from qd.drivers.connections import Connections
from qd.drivers.pausing import threaded
from qd.drivers.types import Outgoing
from qd.errors import ArgumentError, DeclarationError
from qd.events import JobQueued, JobQueueing, Listeners, UniqueJobSkipped
from qd.jobs.context import Backing, RunningJob
from qd.jobs.pipeline import Pipeline
from qd.jobs.plan import Duration, Handle, Place, Plan
from qd.options.kinds import queue_name
from qd.payload.build import make, new_id, new_pair, new_pairs
from qd.payload.encryption import sealed
from qd.payload.format import HOLD, NO_DATA, Relations, check
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config.settings import Settings
    from qd.drivers.redis.aio import AsyncQueue


FEW = 100  # jobs that are made on the event loop; more would block it for milliseconds
Push = Callable[[Sequence[Message]], None]
Transaction = Callable[[Callable[[], object]], bool]  # "call this after the commit"; False: no transaction is open


class Dispatcher:
    """The sender of an app. settings: called by each dispatch, so that nothing is read before the first one."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        connections: Connections,
        listeners: Listeners,
        pipeline: Pipeline,
        backing: Backing,
    ) -> None:
        self._settings, self._connections, self._listeners = settings, connections, listeners
        self._pipeline, self._backing = pipeline, backing
        self.transactions: list[Transaction] = []
        self.hooks = PayloadHooks()

    def send(self, plan: Plan, data: bytes) -> str:
        """Send one job. Returns its id. Raises ConfigError, ConnectionLost, ServerRefused."""
        message = self.route(plan).message(plan, data, *new_pair())
        if plan.after_commit or plan.custom_send is not None:
            return self.submit((message,))[0]
        return self._submit_now((message,))[0]

    def send_many(self, calls: Sequence[tuple[Plan, bytes]]) -> list[str]:
        """Send all of them, one round trip per connection. Returns their ids in order. Raises as `send`."""
        messages, now = list[Message](), time.time()
        before: Plan | None = None
        for (plan, data), uuid, id in zip(calls, *new_pairs(len(calls)), strict=True):
            if plan is not before:  # usually all of them are calls of one job
                before, route = plan, self.route(plan)
            messages.append(route.message(plan, data, uuid, id, None, now))
        return self.submit(messages)

    async def asend(self, plan: Plan, data: bytes) -> str:
        """As `send`, for the tasks of an event loop."""
        return (await self.asend_many([(plan, data)]))[0]

    async def asend_many(self, calls: Sequence[tuple[Plan, bytes]]) -> list[str]:
        queue = await self.native([plan for plan, _ in calls])
        if queue is None:
            return await threaded(partial(self.send_many, calls)).wait()  # type: ignore[no-any-return]
        return await self.asubmit([self.prepare(plan, data) for plan, data in calls], queue)

    async def native(self, plans: Sequence[Plan]) -> AsyncQueue | None:
        """The connection of these jobs for the running event loop. None: send them in a thread, because they are many, go to
        several connections, or run code that may block: transactions, a class's own send(), drivers without asyncio."""
        names = {plan.options.connection for plan in plans}
        if len(names) != 1 or len(plans) > FEW or any(plan.after_commit or plan.custom_send for plan in plans):
            return None
        return await self._connections.native(*names)

    async def asubmit(
        self, messages: Sequence[Message], queue: AsyncQueue, push: Callable[[Connector], Any] | None = None
    ) -> list[str]:
        """As `submit`. queue: that of `native`. push: sends all of them, in place of a plain push."""
        if self._listeners.has(JobQueueing):
            self._emit(JobQueueing, messages)
        return self._sent(messages, await queue.do(push or partial(posted, messages)) or {})

    def prepare(
        self, plan: Plan, data: bytes, relations: Relations | None = None, now: float | None = None, *pair: str
    ) -> Message:
        """Make a message without sending it. relations: those of its chain or batch. now: unix seconds of its creation, if
        not this moment. pair: its uuid and id, if they are fixed. Raises ArgumentError, DeclarationError, ConfigError."""
        uuid, id = pair or new_pair()
        return self.route(plan).message(plan, data, uuid, id, relations, now)

    def submit(self, messages: Sequence[Message]) -> list[str]:
        """Send them, one round trip per connection; jobs with after_commit=True once the open transaction is committed.
        Returns their ids in order. Raises ConnectionLost, ServerRefused, and as `waits`."""
        special = [each for each in messages if (plan := each.plan) and (plan.after_commit or plan.custom_send)]
        if not special:
            return self._submit_now(messages)
        waiting = [each for each in special if self.waits(each)]  # may raise: nothing has been sent yet
        custom = [each for each in special if sends_itself(each)]
        if custom:
            return self._submit_custom(custom, messages)
        if not waiting or not self.after_commit(partial(self._submit_now, waiting)):
            return self._submit_now(messages)
        sent = iter(self._submit_now([each for each in messages if not self.waits(each)]))
        return [each.id if self.waits(each) else next(sent) for each in messages]

    def _submit_custom(self, custom: Sequence[Message], messages: Sequence[Message]) -> list[str]:
        """Call send() of the `custom` jobs, whose class defines it, and submit the others."""
        others = iter(self.submit(rest) if (rest := [each for each in messages if each not in custom]) else ())
        for message in custom:
            if not self.waits(message) or not self.after_commit(partial(self._hand_over, message)):
                self._hand_over(message)
        return [each.id if each in custom else next(others) for each in messages]

    def _hand_over(self, message: Message) -> None:
        assert message.plan is not None
        assert message.plan.custom_send is not None
        message.plan.custom_send(Queue(self, message.queue, message.connection))

    def waits(self, message: Message) -> bool:
        """Whether it must be sent after the commit. Not inside app.transaction(), where it is part of the transaction.
        Raises DeclarationError: this app cannot see a commit."""
        if message.plan is None or not message.plan.after_commit or self._connections.is_lent(message.connection):
            return False
        if not self.transactions:
            raise DeclarationError(
                f"job '{message.name}' has after_commit=True, but this app cannot see transactions: call "
                "qd.contrib.django.install(app) or qd.contrib.sqlalchemy.install(app) where the app is made, or dispatch "
                "the job after the commit without the option"
            )
        return True

    def after_commit(self, act: Callable[[], object]) -> bool:
        """Call `act` once the open transaction is committed. False: none is open.

        It is called outside any app.transaction(): a commit inside that block must not send into the next transaction.
        """
        act = partial(self._connections.outside, act)
        return any(offer(act) for offer in self.transactions)

    def _submit_now(self, messages: Sequence[Message], push: Push | None = None) -> list[str]:
        """push: sends them instead of the connections."""
        if self._listeners.has(JobQueueing):
            self._emit(JobQueueing, messages)
        held: dict[int, str] = {}
        with shield:  # a job's alarm must not interrupt a call
            if push is not None:
                push(messages)
            elif len(messages) == 1:
                held = posted(messages, self._connections.to_send(messages[0].connection))
            else:
                held = self._push_batch(messages)
        return self._sent(messages, held)

    def _sent(self, messages: Sequence[Message], held: Mapping[int, str]) -> list[str]:
        """held: as returned by `posted`."""
        if held:
            return self._skipped(messages, held)
        if self._listeners.has(JobQueued):
            self._emit(JobQueued, messages)
        return [message.id for message in messages]

    def _push_batch(self, messages: Sequence[Message]) -> dict[int, str]:
        """As `posted`, to several connections."""
        groups = defaultdict[str, list[int]](list)
        for index, message in enumerate(messages):
            groups[message.connection].append(index)
        held: dict[int, str] = {}
        for connection, indexes in groups.items():
            some = posted([messages[index] for index in indexes], self._connections.to_send(connection))
            held |= {indexes[place]: owner for place, owner in some.items()}
        return held

    def _skipped(self, messages: Sequence[Message], held: Mapping[int, str]) -> list[str]:
        if self._listeners.has(JobQueued):
            self._emit(JobQueued, [message for index, message in enumerate(messages) if index not in held])
        if self._listeners.has(UniqueJobSkipped):
            for message in map(messages.__getitem__, held):
                name = (message.relations and message.relations.unique) or ""
                self._listeners.emit(UniqueJobSkipped(message.connection, message.queue, message.name, name))
        return [held.get(index, message.id) for index, message in enumerate(messages)]

    def _emit(self, kind: type[JobQueueing | JobQueued], messages: Sequence[Message]) -> None:
        for each in messages:
            facts = (each.connection, each.queue, each.name or None, each.id or None, each.body, each.delay or None)
            self._listeners.emit(kind(*facts))

    def connection(self, name: str | None) -> str:
        """The name of a configured connection; None: of the default one. Raises ConfigError."""
        return self._settings().connection(name).name

    def connector(self, connection: str | None) -> Connector:
        return self._connections.to_send(self.connection(connection))

    def in_transaction(self, plan: Plan) -> bool:
        name, found = self.route(plan).connection, self._connections
        return found.is_lent(name) or found.to_send(name) is not found.get(name)

    def lookup(self, at: Plan | Place) -> SentJobs:
        """The lookup of jobs sent by this plan, or to this place."""
        place = at if isinstance(at, Place) else self.route(at)
        keeps = None if isinstance(at, Place) else bool(at.options.result_ttl)
        native = partial(self._connections.native, place.connection)
        name = self.connection(place.connection)
        return SentJobs(partial(self._connections.get, name), place.queue, keeps, at.declared, native)

    def place(self, plan: Plan) -> Place:
        """Where jobs of this plan are sent, for handles of earlier calls. Raises ConfigError."""
        route = self.route(plan)
        return Place(route.connection, route.queue, plan.declared)

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run it in this process, without configuration and server."""
        return self.run_made(self.made(new_id(), plan, data, LocalConnection(MemoryBatches())), plan)

    def made(
        self, id: str, plan: Plan, data: bytes, local: LocalConnection, relations: Relations | None = None
    ) -> RunningJob:
        """The job that run() runs, with queue, connection and tags of its declaration and using()."""
        return RunningJob(
            id,
            plan.declared.name,
            plan.options.queue or "",
            1,
            connection=plan.options.connection or "",
            relations=relations,
            declared=plan.declared,
            data=data,
            backing=self._backing,
            _tags=plan.options.tags or (),
            local=local,
        )

    def run_made(self, job: RunningJob, plan: Plan) -> Any:
        if plan.declared.is_async:
            refuse_in_a_loop()
        return LocalRunner(self._pipeline, self._listeners, Policy()).run(plan.declared, lambda attempt: job)

    def route(self, plan: Plan) -> Route:
        settings = self._settings()
        for route in plan.routes:
            if route.settings is settings:
                return route  # type: ignore[no-any-return]
        plan.routes[:] = [Route(plan.declared, plan.options, settings, self.hooks)]
        return plan.routes[0]  # type: ignore[no-any-return]


class Queue:
    """A queue, as app.queue("mail") returns it: sends jobs that another program declares, and shows the queue's size.

    connection: None is the default one."""

    def __init__(self, send: Dispatcher, name: str, connection: str | None = None) -> None:
        self._send, self.name, self._connection = send, name, connection

    def push(
        self, job: str, data: object = "", *, delay: Duration | datetime | None = None, encrypted: bool = False
    ) -> Handle[None]:
        """Send a job by its name in the other program: "App\\\\Jobs\\\\X@fire" for PHP. data: a JSON value. encrypted: PHP
        gets {"encrypted": "..."}, which Laravel's Encrypter decrypts."""
        seconds = 0.0 if delay is None else due_in(delay, job)
        text = encode_value(data, f"the data of job '{job}'", as_it_is=True)
        settings, connection = self._place()
        uuid, id = new_pair()
        signing, plain = signing_of(settings), text
        if encrypted:
            text = sealed(text or NO_DATA, settings.encryption.keys, job)
        body = make(job, text, uuid=uuid, id=id, created_at=int(time.time()))
        if self._send.hooks:
            body = self._send.hooks.put_into(body, id, connection, self.name)
        if signing is not None:
            body = signing.signed(body, uuid, id, job, text or NO_DATA)
        check(body, job, settings.max_payload, settings.max_depth)
        self._send.submit((Message(connection, self.name, body, seconds, job, id, uuid, plain),))
        return Handle(id, self._send, Place(self._connection, self.name))

    def push_raw(self, payload: bytes, *, delay: Duration | datetime | None = None) -> None:
        """Send these bytes unchanged. Only their size and depth are checked."""
        if not isinstance(payload, bytes):
            raise ArgumentError(f"push_raw takes the bytes of a payload, not {type(payload).__name__}: encode() it")
        seconds = 0.0 if delay is None else due_in(delay)
        settings, connection = self._place()
        check(payload, None, settings.max_payload, settings.max_depth)
        self._send.submit((Message(connection, self.name, payload, seconds),))

    def _place(self) -> tuple[Settings, str]:
        """The settings, and the name of the connection. Raises ArgumentError: the name is the key of another queue."""
        try:
            queue_name(self.name)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        settings = self._send._settings()
        return settings, settings.connection(self._connection).name

    def size(self) -> int:
        """How many jobs are ready, delayed or running."""
        with shield:
            sizes = self._send.connector(self._connection).sizes(self.name)
        return sizes.ready + sizes.delayed + sizes.reserved

    def clear(self) -> int:
        """Delete ready and delayed jobs, not running ones. Returns how many."""
        with shield:
            return self._send.connector(self._connection).clear(self.name)

    def __repr__(self) -> str:
        return f"<queue {self.name}>"


class Keyed:
    """A waiting job by its key, as app.keyed(remind, "order:42") returns it: to be moved or cancelled before it runs.

    Each method is one call of the server. After ConnectionLost or ServerRefused the outcome is unknown: call it again."""

    def __init__(self, send: Dispatcher, plan: Plan, key: str) -> None:
        self._send, self._plan, self.key = send, plan, key
        self._name = name_of(plan.declared.name, key)

    def cancel(self) -> bool:
        """True: it was waiting and will not run. False: it has started, has ended, or never existed."""
        route = self._send.route(self._plan)
        with shield:
            return self._send.connector(route.connection).cancel_keyed(route.queue, self._name)

    def reschedule(self, delay: Duration | datetime) -> bool:
        """True: it was waiting and is now due after `delay`, counted from now. False: as of cancel()."""
        route = self._send.route(self._plan)
        seconds = due_in(delay, self._plan.declared.name)
        with shield:
            return self._send.connector(route.connection).move_keyed(route.queue, self._name, seconds)

    def due(self) -> datetime | None:
        """When it is due, possibly in the past if no worker has taken it yet. None: it is not waiting."""
        route = self._send.route(self._plan)
        with shield:
            due = self._send.connector(route.connection).keyed_due(route.queue, self._name)
        return None if due is None else datetime.fromtimestamp(due, UTC)

    def __repr__(self) -> str:
        return f"<job {self._plan.declared.name} under key {self.key!r}>"


def sends_itself(message: Message) -> bool:
    """Whether send() of its class must be called; never that of a job that carries a chain or belongs to a batch."""
    relations, plan = message.relations, message.plan
    tied = relations and (relations.chain or relations.catch or relations.batch or relations.after)
    return plan is not None and plan.custom_send is not None and not tied


def posted(messages: Sequence[Message], queue: Connector) -> dict[int, str]:
    """Send them to one connection. Returns those that were not sent because their unique lock is taken: index -> id of the
    lock's owner."""
    if len(messages) > 1 or messages[0].relations is not None:
        owners = queue.post([outgoing(message) for message in messages])
        return {index: owner for index, owner in enumerate(owners) if owner is not None}
    (message,) = messages
    if message.delay:
        queue.later(message.queue, message.body, message.delay)
    else:
        queue.push(message.queue, message.body)
    return {}


def outgoing(message: Message) -> Outgoing:
    relations = message.relations
    if relations is None:
        return Outgoing(message.queue, message.body, message.delay)
    lock, owner, hold = (relations.unique, message.id, relations.hold or HOLD) if relations.unique else ("", "", 0.0)
    return Outgoing(message.queue, message.body, message.delay, lock, owner, hold, relations.key or "")
