"""The one way out: a plan and its data -> Parcel -> connector. Called by every dispatch, through app.py.

    parcel    made here and now: whatever is wrong with a job is told here
    post      sent, in one round trip; or when the open transaction has been committed (after_commit=True)

Single, bulk, named and raw jobs, chains and batches all go through these two.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from qd.arguments.values import encode_value
from qd.dispatch.local import LocalConnection, LocalRunner, MemoryBatches, Once, refuse_in_a_loop
from qd.dispatch.results import SentJobs
from qd.dispatch.route import Message, PayloadHooks, Route, due_in, name_of, routed
from qd.dispatch.route import signing_of as signing_of
from qd.drivers.base import Connector
from qd.drivers.connections import Connections
from qd.drivers.types import Outgoing
from qd.errors import ArgumentError, DeclarationError
from qd.events import JobQueued, JobQueueing, Listeners, UniqueJobSkipped
from qd.jobs.context import Backing, RunningJob
from qd.jobs.pipeline import Pipeline
from qd.jobs.plan import Duration, Handle, Place, Plan
from qd.options.kinds import queue_name
from qd.payload.build import make, new_id, new_pair, new_pairs
from qd.payload.format import HOLD, NO_DATA, Relations
from qd.payload.size import check
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config.settings import Settings


Push = Callable[[Sequence[Message]], None]
Transaction = Callable[[Callable[[], object]], bool]  # "call this after the commit"; False: no transaction is open


class Dispatcher:
    """The sender of an app: `settings` is asked at each call, so that nothing is read before the first one."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        connections: Connections,
        listeners: Listeners,
        pipeline: Pipeline,
        backing: Backing,
    ) -> None:
        self._settings = settings
        self._pipeline, self._backing = pipeline, backing
        self._connections = connections
        self._listeners = listeners
        self.transactions: list[Transaction] = []
        self.hooks = PayloadHooks()

    def send(self, plan: Plan, data: bytes) -> str:
        """Make it ready, or due after its delay. Returns its id. Raises ConfigError, ConnectionLost, ServerRefused."""
        parcel = self.route(plan).parcel(plan, data, *new_pair())
        if plan.after_commit or plan.by is not None:
            return self.post((parcel,))[0]
        return self._post((parcel,))[0]

    def send_many(self, calls: Sequence[tuple[Plan, bytes]]) -> list[str]:
        """All of them in one round trip for each connection. Returns their ids in order. Raises as `send`."""
        parcels, now = list[Message](), time.time()
        before: Plan | None = None
        for (plan, data), uuid, id in zip(calls, *new_pairs(len(calls)), strict=True):
            if plan is not before:  # as a rule all of them are calls of one job
                before, route = plan, self.route(plan)
            parcels.append(route.parcel(plan, data, uuid, id, None, now))
        return self.post(parcels)

    def parcel(self, plan: Plan, data: bytes, ties: Relations | None = None, now: float | None = None) -> Message:
        """Make it and do not send it. ties: of a chain or batch, beside those of the job itself. now: unix seconds at which
        it counts as made, where that is not this moment. Raises ArgumentError, DeclarationError, ConfigError."""
        return self.route(plan).parcel(plan, data, *new_pair(), ties, now)

    def post(self, parcels: Sequence[Message]) -> list[str]:
        """Send them, in one round trip for each connection; those of a job with after_commit=True when the transaction
        that is open now has been committed. Returns their ids in order. Raises ConnectionLost, ServerRefused,
        and what `waits` raises."""
        special = [each for each in parcels if (plan := each.plan) is not None and (plan.after_commit or plan.by)]
        if not special:
            return self._post(parcels)
        waiting = [parcel for parcel in special if self.waits(parcel)]  # may raise: nothing has been sent yet
        by_hand = [parcel for parcel in special if sends_itself(parcel)]
        if by_hand:
            return self._post_beside(by_hand, parcels)
        if not waiting or not self.after_commit(partial(self._post, waiting)):
            return self._post(parcels)
        sent = iter(self._post([parcel for parcel in parcels if not self.waits(parcel)]))
        return [parcel.id if self.waits(parcel) else next(sent) for parcel in parcels]

    def _post_beside(self, by_hand: Sequence[Message], parcels: Sequence[Message]) -> list[str]:
        """Jobs whose class has a send(): that is called, and the others are posted."""
        others = iter(self.post(rest) if (rest := [each for each in parcels if each not in by_hand]) else ())
        for parcel in by_hand:
            if not self.waits(parcel) or not self.after_commit(partial(self._hand_over, parcel)):
                self._hand_over(parcel)
        return [parcel.id if parcel in by_hand else next(others) for parcel in parcels]

    def _hand_over(self, parcel: Message) -> None:
        assert parcel.plan is not None
        assert parcel.plan.by is not None
        parcel.plan.by(Queue(self, parcel.queue, parcel.connection))

    def waits(self, parcel: Message) -> bool:
        """Whether it is to be sent after the commit. Not inside app.transaction(), where it belongs to the transaction
        already. Raises DeclarationError: this app cannot see a commit."""
        if parcel.plan is None or not parcel.plan.after_commit or self._connections.is_lent(parcel.connection):
            return False
        if not self.transactions:
            raise DeclarationError(
                f"job '{parcel.name}' has after_commit=True, but this app sees no transactions: call "
                "qd.contrib.django.install(app) or qd.contrib.sqlalchemy.install(app) where the app is made, or dispatch "
                "the job after the commit without the option"
            )
        return True

    def after_commit(self, act: Callable[[], object]) -> bool:
        """Call `act` when the transaction that is open now has been committed. False: none is open.

        It is called outside of any app.transaction(): a commit inside that block must not send into the next transaction.
        """
        act = partial(self._connections.outside, act)
        return any(offer(act) for offer in self.transactions)

    def _post(self, parcels: Sequence[Message], push: Push | None = None) -> list[str]:
        """push: sends them in a way of its own."""
        if self._listeners.has(JobQueueing):
            self._tell(JobQueueing, parcels)
        held: dict[int, str] | None = None
        with shield:  # a job's alarm must not tear a call apart
            if push is not None:
                push(parcels)
            elif len(parcels) == 1 and parcels[0].ties is None:
                self._push(parcels[0])
            else:
                held = self._push_many(parcels)
        if held:
            return self._skipped(parcels, held)
        if self._listeners.has(JobQueued):
            self._tell(JobQueued, parcels)
        return [parcel.id for parcel in parcels]

    def _push(self, parcel: Message) -> None:
        connection = self._connections.get(parcel.connection)
        if parcel.delay:
            connection.later(parcel.queue, parcel.body, parcel.delay)
        else:
            connection.push(parcel.queue, parcel.body)

    def _push_many(self, parcels: Sequence[Message]) -> dict[int, str]:
        """By their places, who holds the locks of those that were not sent."""
        groups = defaultdict[str, list[int]](list)
        for place, parcel in enumerate(parcels):
            groups[parcel.connection].append(place)
        held: dict[int, str] = {}
        for connection, places in groups.items():
            answers = self._connections.get(connection).post([outgoing(parcels[place]) for place in places])
            held |= {place: holder for place, holder in zip(places, answers, strict=True) if holder is not None}
        return held

    def _skipped(self, parcels: Sequence[Message], held: Mapping[int, str]) -> list[str]:
        if self._listeners.has(JobQueued):
            self._tell(JobQueued, [parcel for place, parcel in enumerate(parcels) if place not in held])
        if self._listeners.has(UniqueJobSkipped):
            for place in held:
                parcel = parcels[place]
                name = (parcel.ties and parcel.ties.unique) or ""
                self._listeners.emit(UniqueJobSkipped(parcel.connection, parcel.queue, parcel.name, name))
        return [held.get(place, parcel.id) for place, parcel in enumerate(parcels)]

    def _tell(self, kind: type[JobQueueing | JobQueued], parcels: Sequence[Message]) -> None:
        for each in parcels:
            facts = (each.connection, each.queue, each.name or None, each.id or None, each.body, each.delay or None)
            self._listeners.emit(kind(*facts))

    def push_named(self, connection: str | None, queue: str, job: str, data: bytes, delay: float) -> str:
        """Send a job of another program, by the name it has there. Returns its id."""
        check_queue(queue)
        settings, (uuid, id) = self._settings(), new_pair()
        signing = signing_of(settings)
        place = settings.connection(connection).name
        body = make(job, data, uuid=uuid, id=id, created_at=int(time.time()))
        if self.hooks:
            body = self.hooks.put_into(body, id, place, queue)
        if signing is not None:
            body = signing.signed(body, uuid, id, job, data or NO_DATA)
        check(body, job, settings.max_payload, settings.max_depth)
        return self.post((Message(place, queue, body, delay, job, id, uuid, data),))[0]

    def push_raw(self, connection: str | None, queue: str, payload: bytes, delay: float) -> None:
        """Send these bytes, signed or not, as they are. Raises ArgumentError: they are too many or nested too deep."""
        check_queue(queue)
        settings = self._settings()
        check(payload, None, settings.max_payload, settings.max_depth)
        self.post((Message(settings.connection(connection).name, queue, payload, delay),))

    def connection(self, name: str | None) -> str:
        """The name of a configured connection, None: of the default one. Raises ConfigError."""
        return self._settings().connection(name).name

    def connector(self, connection: str | None) -> Connector:
        return self._connections.get(self.connection(connection))

    def ask(self, at: Plan | Place) -> SentJobs:
        """Who knows what became of jobs of this plan, or of jobs sent there."""
        if isinstance(at, Place):
            return SentJobs(lambda: self.connector(at.connection).jobs, at.queue)
        route = self.route(at)
        return SentJobs(
            lambda: self.connector(route.connection).jobs, route.queue, bool(at.options.result_ttl), at.declared
        )

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run it here and now; no configuration is read, no server asked."""
        return self.run_made(self.made(new_id(), plan, data, LocalConnection(MemoryBatches())), plan)

    def made(
        self, id: str, plan: Plan, data: bytes, local: LocalConnection, ties: Relations | None = None
    ) -> RunningJob:
        """The job that run() runs; its queue, connection and tags are those that its declaration and using() say."""
        said = plan.options
        return RunningJob(
            id,
            plan.declared.name,
            said.queue or "",
            1,
            connection=said.connection or "",
            ties=ties,
            declared=plan.declared,
            data=data,
            backing=self._backing,
            tags=said.tags or (),
            local=local,
        )

    def run_made(self, job: RunningJob, plan: Plan) -> Any:
        if plan.declared.is_async:
            refuse_in_a_loop()
        return LocalRunner(self._pipeline, self._listeners, Once()).run(plan.declared, lambda attempt: job)

    def route(self, plan: Plan) -> Route:
        settings = self._settings()
        for route in plan.notes:
            if route.settings is settings:
                return route  # type: ignore[no-any-return]
        plan.notes[:] = [routed(plan.declared, plan.options, settings, self.hooks)]
        return plan.notes[0]  # type: ignore[no-any-return]


class Queue:
    """A queue by its name, as app.queue("mail") returns it: jobs that another program declares, and the queue's state.

    connection: None is the default one. Nothing is asked of the server before a method is called."""

    def __init__(self, send: Dispatcher, name: str, connection: str | None = None) -> None:
        self._send = send
        self.name = name
        self._connection = connection

    def push(self, job: str, data: object = "", *, delay: Duration | datetime | None = None) -> Handle[None]:
        """Send a job by the name it has elsewhere: "App\\\\Jobs\\\\X@fire" for PHP. data: what JSON can hold."""
        seconds = 0.0 if delay is None else due_in(delay, job)
        text = encode_value(data, f"the data of job '{job}'", as_it_is=True)
        id = self._send.push_named(self._connection, self.name, job, text, seconds)
        return Handle(id, self._send, Place(self._connection, self.name))

    def push_raw(self, payload: bytes, *, delay: Duration | datetime | None = None) -> None:
        """Send these bytes as they are; only their size and depth are looked at."""
        if not isinstance(payload, bytes):
            raise ArgumentError(f"push_raw takes the bytes of a payload, not {type(payload).__name__}: encode() it")
        seconds = 0.0 if delay is None else due_in(delay)
        self._send.push_raw(self._connection, self.name, payload, seconds)

    def size(self) -> int:
        """How many jobs are ready, delayed or running."""
        with shield:
            sizes = self._send.connector(self._connection).sizes(self.name)
        return sizes.ready + sizes.delayed + sizes.reserved

    def clear(self) -> int:
        """Delete what is ready or delayed, never what runs. Returns how many."""
        with shield:
            return self._send.connector(self._connection).clear(self.name)

    def __repr__(self) -> str:
        return f"<queue {self.name}>"


class Keyed:
    """A job by the key it waits under, as app.keyed(remind, "order:42") returns it: moved and cancelled before it runs.

    Nothing is asked of the server before a method is called; each of them is one call. They may raise ConnectionLost and
    ServerRefused: then nothing is known, and asking again is right."""

    def __init__(self, send: Dispatcher, plan: Plan, key: str) -> None:
        self._send, self._plan, self.key = send, plan, key
        self._name = name_of(plan.declared.name, key)

    def cancel(self) -> bool:
        """True: it waited, and will never run. False: it has begun, has run, or was never there."""
        route = self._send.route(self._plan)
        with shield:
            return self._send.connector(route.connection).cancel_keyed(route.queue, self._name)

    def reschedule(self, delay: Duration | datetime) -> bool:
        """True: it waited, and is due after `delay` from now. False: as of cancel()."""
        route = self._send.route(self._plan)
        seconds = due_in(delay, self._plan.declared.name)
        with shield:
            return self._send.connector(route.connection).move_keyed(route.queue, self._name, seconds)

    def due(self) -> datetime | None:
        """When it is due, or was: a moment that has passed, while no worker has taken it yet. None: it does not wait."""
        route = self._send.route(self._plan)
        with shield:
            found = self._send.connector(route.connection).keyed_due(route.queue, self._name)
        return None if found is None else datetime.fromtimestamp(found, UTC)

    def __repr__(self) -> str:
        return f"<job {self._plan.declared.name} under key {self.key!r}>"


def check_queue(name: str) -> None:
    """Raises ArgumentError for a name that is a key of another queue."""
    try:
        queue_name(name)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def sends_itself(parcel: Message) -> bool:
    """Whether its class has a send() that is to be called; not that of a job which carries a chain or belongs to a batch."""
    ties, plan = parcel.ties, parcel.plan
    return (
        plan is not None
        and plan.by is not None
        and not (ties and (ties.chain or ties.catch or ties.batch or ties.after))
    )


def outgoing(parcel: Message) -> Outgoing:
    ties = parcel.ties
    if ties is None:
        return Outgoing(parcel.queue, parcel.body, parcel.delay)
    lock, owner, hold = (ties.unique, parcel.id, ties.hold or HOLD) if ties.unique else ("", "", 0.0)
    return Outgoing(parcel.queue, parcel.body, parcel.delay, lock, owner, hold, ties.key or "")
