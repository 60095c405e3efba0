"""The one way out: a plan and its data -> Parcel -> connector. Called by every dispatch, through app.py.

    parcel    made here and now: whatever is wrong with a job is told here
    post      sent, in one round trip; or when the open transaction has been committed (after_commit=True)

Single, bulk, named and raw jobs, chains and batches all go through these two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from qd.bounds import check
from qd.bus.common import Common
from qd.bus.parcel import Parcel
from qd.bus.route import Route, routed
from qd.bus.route import due_in as due_in
from qd.bus.route import signing_of as signing_of
from qd.bus.running import RunningJob, run_here
from qd.bus.skeleton import SEED
from qd.connectors.base import Queue
from qd.connectors.manager import Connections
from qd.events import JobQueued, Listeners
from qd.jobs import Plan
from qd.payload import NO_DATA, make, new_id, new_uuid
from qd.process.shield import shield
from qd.ties import Ties

if TYPE_CHECKING:
    from qd.config import Settings

Transaction = Callable[[Callable[[], object]], bool]  # "call this after the commit"; False: no transaction is open


class Send:
    """The sender of an app: `settings` is asked at each call, so that nothing is read before the first one."""

    def __init__(
        self, settings: Callable[[], Settings], connections: Connections, listeners: Listeners, common: Common
    ) -> None:
        self._settings = settings
        self._common = common
        self._connections = connections
        self._listeners = listeners
        self.transactions: list[Transaction] = []

    def send(self, plan: Plan, data: bytes) -> str:
        """Make it ready, or due after its delay. Returns its id. Raises ConfigError, ConnectionLost, ServerRefused."""
        return self.post((self.route(plan).parcel(plan, data, os.urandom(SEED), None),))[0]

    def send_many(self, calls: Sequence[tuple[Plan, bytes]]) -> list[str]:
        """All of them in one round trip for each connection. Returns their ids in order. Raises as `send`."""
        parcels, noise = [], os.urandom(SEED * len(calls))
        before: Plan | None = None
        for number, (plan, data) in enumerate(calls):
            if plan is not before:  # as a rule all of them are calls of one job
                before, route = plan, self.route(plan)
            parcels.append(route.parcel(plan, data, noise[number * SEED : (number + 1) * SEED], None))
        return self.post(parcels)

    def parcel(self, plan: Plan, data: bytes, ties: Ties | None = None) -> Parcel:
        """Make it and do not send it. ties: of a chain or batch, beside those of the job itself. Raises ArgumentError,
        DeclarationError, ConfigError."""
        return self.route(plan).parcel(plan, data, os.urandom(SEED), ties)

    def post(self, parcels: Sequence[Parcel]) -> list[str]:
        """Send them, in one round trip for each connection; those of a job with after_commit=True when the transaction
        that is open now has been committed. Returns their ids in order. Raises ConnectionLost, ServerRefused."""
        waiting = [parcel for parcel in parcels if waits(parcel)]
        if not waiting or not self.after_commit(partial(self._post, waiting)):
            return self._post(parcels)
        sent = iter(self._post([parcel for parcel in parcels if not waits(parcel)]))
        return [parcel.id if waits(parcel) else next(sent) for parcel in parcels]

    def after_commit(self, act: Callable[[], object]) -> bool:
        """Let `act` be called when the transaction that is open now has been committed. False: none is open."""
        return any(offer(act) for offer in self.transactions)

    def _post(self, parcels: Sequence[Parcel]) -> list[str]:
        with shield:  # a job's alarm must not tear a call apart
            if len(parcels) == 1:
                self._push(parcels[0])
            else:
                self._push_many(parcels)
        if self._listeners.has(JobQueued):
            for sent in parcels:
                self._listeners.emit(
                    JobQueued(
                        sent.connection, sent.queue, sent.name or None, sent.id or None, sent.body, sent.delay or None
                    )
                )
        return [parcel.id for parcel in parcels]

    def _push(self, parcel: Parcel) -> None:
        connection = self._connections.get(parcel.connection)
        if parcel.delay:
            connection.later(parcel.queue, parcel.body, parcel.delay)
        else:
            connection.push(parcel.queue, parcel.body)

    def _push_many(self, parcels: Sequence[Parcel]) -> None:
        sent: dict[str, list[tuple[str, bytes, float | None]]] = {}
        for parcel in parcels:
            sent.setdefault(parcel.connection, []).append((parcel.queue, parcel.body, parcel.delay or None))
        for connection, jobs in sent.items():
            self._connections.get(connection).push_many(jobs)

    def push_named(self, connection: str | None, queue: str, job: str, data: bytes, delay: float) -> str:
        """Send a job of another program, by the name it has there. Returns its id."""
        settings, seed = self._settings(), os.urandom(SEED)
        id, uuid, signing = new_id(seed), new_uuid(seed), signing_of(settings)
        body = make(job, data, uuid=uuid, id=id, created_at=int(time.time()))
        if signing is not None:
            body = signing.signed(body, uuid, id, job, data or NO_DATA)
        check(body, job, settings.max_payload, settings.max_depth)
        place = settings.connection(connection).name
        return self.post((Parcel(place, queue, body, delay, job, id, uuid, data),))[0]

    def push_raw(self, connection: str | None, queue: str, payload: bytes, delay: float) -> None:
        """Send these bytes, signed or not, as they are. Raises ArgumentError: they are too many or nested too deep."""
        settings = self._settings()
        check(payload, None, settings.max_payload, settings.max_depth)
        self.post((Parcel(settings.connection(connection).name, queue, payload, delay),))

    def connection(self, name: str | None) -> str:
        """The name of a configured connection, None: of the default one. Raises ConfigError."""
        return self._settings().connection(name).name

    def queue(self, connection: str | None) -> Queue:
        return self._connections.get(self.connection(connection))

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run it here and now; no configuration is read, no server asked."""
        declared = plan.declared
        id, queue, common = new_id(os.urandom(SEED)), plan.options.queue or "", self._common
        job = RunningJob(id, declared.name, queue, 1, connection=plan.options.connection or "", common=common)
        return run_here(declared, data, job, self._listeners, common.pipeline.around(declared))

    def route(self, plan: Plan) -> Route:
        settings = self._settings()
        for route in plan.notes:
            if route.settings is settings:
                return route  # type: ignore[no-any-return]
        plan.notes[:] = [routed(plan.declared, plan.options, settings)]
        return plan.notes[0]  # type: ignore[no-any-return]


def waits(parcel: Parcel) -> bool:
    """Whether it is to be sent after the commit."""
    return bool(parcel.plan is not None and parcel.plan.after_commit)
