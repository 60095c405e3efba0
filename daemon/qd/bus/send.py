"""The one way out: a plan and its data -> payload -> connector. Called by every dispatch, through app.py.

What stays the same from call to call (connection, queue, the payload's options) is worked out once a plan: its Route.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qd.bounds import check
from qd.bus.running import RunningJob, run_here
from qd.bus.skeleton import SEED, Skeleton
from qd.connectors.base import Queue
from qd.connectors.manager import Connections
from qd.errors import DeclarationError
from qd.events import JobQueued, Listeners
from qd.jobs import Declared, Plan, Span
from qd.options import JobOptions
from qd.payload import NO_DATA, make, new_id, new_uuid
from qd.process.shield import shield
from qd.signing import Signing
from qd.units import span

if TYPE_CHECKING:
    from qd.config import Settings


class Route(NamedTuple):
    """Where jobs of a plan go, and what their payloads say. retry_for: seconds after they are due."""

    settings: Settings
    connection: str
    queue: str
    job: str
    skeleton: Skeleton
    retry_for: float | None
    signing: Signing | None

    def payload(self, data: bytes, seed: bytes, delay: float) -> tuple[str, bytes]:
        """Its id, which current_job().id will be, and its bytes. Raises ArgumentError: they are too many."""
        now, id, uuid = time.time(), new_id(seed), new_uuid(seed)
        until = None if self.retry_for is None else math.ceil(now + delay + self.retry_for)
        body = self.skeleton.filled(data, uuid, id, int(now), until)
        if self.signing is not None:
            body = self.signing.signed(body, uuid, id, self.job, data or NO_DATA)
        check(body, self.job, self.settings.max_payload, self.settings.max_depth)
        return id, body


class Send:
    """The sender of an app: `settings` is asked at each call, so that nothing is read before the first one."""

    def __init__(self, settings: Callable[[], Settings], connections: Connections, listeners: Listeners) -> None:
        self._settings = settings
        self._connections = connections
        self._listeners = listeners

    def send(self, plan: Plan, data: bytes) -> str:
        """Make it ready, or due after its delay. Returns its id. Raises ConfigError, ConnectionLost, ServerRefused."""
        route = self.route(plan)
        delay = 0.0 if plan.delay is None else due_in(plan.delay)
        id, body = route.payload(data, os.urandom(SEED), delay)
        self.push(route.connection, route.queue, body, delay, plan.declared.name, id)
        return id

    def send_many(self, calls: Sequence[tuple[Plan, bytes]]) -> list[str]:
        """All of them in one round trip for each connection. Returns their ids in order. Raises as `send`."""
        ids, noise = [], os.urandom(SEED * len(calls))
        sent: dict[str, list[tuple[str, bytes, float | None]]] = {}
        told: list[JobQueued] | None = [] if self._listeners.has(JobQueued) else None
        before: Plan | None = None
        for number, (plan, data) in enumerate(calls):
            if plan is not before:  # as a rule all of them are calls of one job
                before, route = plan, self.route(plan)
            delay = 0.0 if plan.delay is None else due_in(plan.delay)
            id, body = route.payload(data, noise[number * SEED : (number + 1) * SEED], delay)
            ids.append(id)
            sent.setdefault(route.connection, []).append((route.queue, body, delay or None))
            if told is not None:
                told.append(JobQueued(route.connection, route.queue, plan.declared.name, id, body, delay or None))
        with shield:
            for connection, jobs in sent.items():
                self._connections.get(connection).push_many(jobs)
        for event in told or ():
            self._listeners.emit(event)
        return ids

    def push(self, connection: str, queue: str, body: bytes, delay: float, name: str | None, id: str | None) -> None:
        """Hand a payload to the connection. name and id are None where only the payload knows them."""
        with shield:  # a job's alarm must not tear a call apart
            if delay:
                self._connections.get(connection).later(queue, body, delay)
            else:
                self._connections.get(connection).push(queue, body)
        if self._listeners.has(JobQueued):
            self._listeners.emit(JobQueued(connection, queue, name, id, body, delay or None))

    def push_named(self, connection: str | None, queue: str, job: str, data: bytes, delay: float) -> str:
        """Send a job of another program, by the name it has there. Returns its id."""
        settings, seed = self._settings(), os.urandom(SEED)
        id, uuid, signing = new_id(seed), new_uuid(seed), signing_of(settings)
        body = make(job, data, uuid=uuid, id=id, created_at=int(time.time()))
        if signing is not None:
            body = signing.signed(body, uuid, id, job, data or NO_DATA)
        check(body, job, settings.max_payload, settings.max_depth)
        self.push(settings.connection(connection).name, queue, body, delay, job, id)
        return id

    def push_raw(self, connection: str | None, queue: str, payload: bytes, delay: float) -> None:
        """Send these bytes, signed or not, as they are. Raises ArgumentError: they are too many or nested too deep."""
        settings = self._settings()
        check(payload, None, settings.max_payload, settings.max_depth)
        self.push(settings.connection(connection).name, queue, payload, delay, None, None)

    def connection(self, name: str | None) -> str:
        """The name of a configured connection, None: of the default one. Raises ConfigError."""
        return self._settings().connection(name).name

    def queue(self, connection: str | None) -> Queue:
        return self._connections.get(self.connection(connection))

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run it here and now; no configuration is read, no server asked."""
        declared = plan.declared
        job = RunningJob(new_id(os.urandom(SEED)), declared.name, plan.options.queue or "", 1)
        return run_here(declared, data, job, self._listeners)

    def route(self, plan: Plan) -> Route:
        settings = self._settings()
        for route in plan.notes:
            if route.settings is settings:
                return route  # type: ignore[no-any-return]
        plan.notes[:] = [routed(plan.declared, plan.options, settings)]
        return plan.notes[0]  # type: ignore[no-any-return]


def routed(declared: Declared, options: JobOptions, settings: Settings) -> Route:
    """What the declaration and .using(...) say, as the payload says it."""
    connection = settings.connection(options.connection)
    fixed = partial(
        make,
        declared.name,
        max_tries=options.tries,
        max_exceptions=options.max_exceptions,
        fail_on_timeout=bool(options.fail_on_timeout),
        backoff=options.backoff,
        timeout=travelling(options.timeout, declared),
        extra={"tags": options.tags} if options.tags else None,
    )
    skeleton = Skeleton(fixed, options.retry_for is not None)
    queue, signing = options.queue or connection.queue, signing_of(settings)
    return Route(settings, connection.name, queue, declared.name, skeleton, options.retry_for, signing)


def signing_of(settings: Settings) -> Signing | None:
    """None: no keys are configured."""
    return Signing(settings.signing.keys, settings.signing.require) if settings.signing.keys else None


def travelling(timeout: float | None, declared: Declared) -> float | None:
    """The timeout for the payload, which has whole seconds only: a declared fraction stays out of it, since the worker
    reads the declaration too; another is rounded up."""
    return None if timeout and timeout % 1 and timeout == declared.options.timeout else timeout


def due_in(delay: Span | datetime) -> float:
    """Seconds from now, 0 for a moment that has passed. Raises DeclarationError for what is neither."""
    if isinstance(delay, datetime):
        if delay.tzinfo is None:
            raise DeclarationError(f"delay {delay} has no time zone: write datetime.now(timezone.utc) + ...")
        return max(0.0, delay.timestamp() - time.time())
    try:
        return span(delay)
    except ValueError as error:
        raise DeclarationError(f"option delay of a job: {error}") from None
