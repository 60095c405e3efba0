"""What stays the same from dispatch to dispatch of a plan: connection, queue, the payload's options. send.py
asks here for each parcel."""

from __future__ import annotations

import math
import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import asdict

from qd.arguments import Pattern
from qd.bounds import check, harmless
from qd.bus.hooks import PayloadHooks
from qd.bus.parcel import Parcel
from qd.bus.skeleton import Skeleton
from qd.errors import DeclarationError
from qd.jobs import Declared, Duration, Plan
from qd.jobs.plan import patterns
from qd.options import JobOptions
from qd.payload import NO_DATA, make, tied
from qd.signing import Signing
from qd.ties import Ties, key_of, plain_name
from qd.units import span_in_code

if TYPE_CHECKING:
    from qd.config import Settings


UNTIED = Ties()


class Route(msgspec.Struct, frozen=True):
    """Where jobs of a plan go, and what their payloads say. retry_for: seconds after they are due."""

    settings: Settings
    connection: str
    queue: str
    job: str
    skeleton: Skeleton
    retry_for: float | None
    signing: Signing | None
    display: Pattern | None  # where the arguments stand in the name for people
    ties: Ties | None  # of every job of the plan
    unique: Pattern | None
    hooks: PayloadHooks
    harmless: int  # bytes of a payload that needs no check

    def parcel(
        self, plan: Plan, data: bytes, uuid: str, id: str, ties: Ties | None = None, now: float | None = None
    ) -> Parcel:
        """now: unix seconds, another moment than this one. Raises ArgumentError: it is too large. DeclarationError: a delay
        that is none."""
        delay = 0.0 if plan.delay is None else due_in(plan.delay, self.job)
        now = time.time() if now is None else now
        if self.ties is not None or ties is not None or plan.key is not None:
            ties = self._tied(plan, data, id, ties)
            id = uuid if ties.unique is not None else id  # who finds the lock taken learns the id of its owner
        until = None if self.retry_for is None else math.ceil(now + delay + self.retry_for)
        display = None if self.display is None else self.display.filled(data)
        body = self.skeleton.filled(data, uuid, id, int(now), until, display)
        if self.hooks:
            body = self.hooks.put_into(body, id, self.connection, self.queue)
        if ties is not None:
            body = tied(body, id, ties)
        if self.signing is not None:
            body = self.signing.signed(body, uuid, id, self.job, data or NO_DATA)
        if len(body) > self.harmless:
            check(body, self.job, self.settings.max_payload, self.settings.max_depth, data)
        return Parcel(self.connection, self.queue, body, delay, self.job, id, uuid, data, plan, ties)

    def _tied(self, plan: Plan, data: bytes, id: str, given: Ties | None) -> Ties:
        """What the declaration ties it to, its key, and what is `given` by a chain or batch."""
        said = {} if self.ties is None else asdict(self.ties)
        if given is not None:
            said |= {name: value for name, value in asdict(given).items() if value != getattr(UNTIED, name)}
        if self.unique is not None:
            said["unique"] = name_of(self.job, self.unique.key(data))
        if plan.key is not None:
            if self.unique is not None:
                raise DeclarationError(
                    f"job '{self.job}' has unique= and is sent with key='{plan.key}': a key keeps it single already, "
                    "leave one of them out"
                )
            said["key"] = key_of(id, name_of(self.job, plan.key))
        return Ties(**said)


def routed(declared: Declared, options: JobOptions, settings: Settings, hooks: PayloadHooks) -> Route:
    """What the declaration and .using(...) say, as the payload says it."""
    connection = settings.connection(options.connection)
    display, unique = patterns(declared, options)
    fixed = partial(
        make,
        declared.name,
        display=None if display is None or display.names else display.filled(b""),
        max_tries=options.tries,
        max_exceptions=options.max_exceptions,
        fail_on_timeout=bool(options.fail_on_timeout),
        backoff=options.backoff,
        timeout=travelling(options.timeout, declared),
        delete_when_missing=options.delete_when_missing,
        extra={"tags": options.tags} if options.tags else None,
    )
    return Route(
        settings,
        connection.name,
        options.queue or connection.queue,
        declared.name,
        Skeleton(fixed, options.retry_for is not None),
        options.retry_for,
        signing_of(settings),
        display if display is not None and display.names else None,
        ties_of(options),
        unique,
        hooks,
        harmless(settings.max_payload, settings.max_depth),
    )


def name_of(job: str, said: str) -> str:
    """What a lock or a key of this job is called."""
    return plain_name(f"{job}:{said}")


def ties_of(options: JobOptions) -> Ties | None:
    """What every job with these options is tied to; None for a plain one."""
    if options.unique is None and not options.result_ttl:
        return None
    until: Literal["start", "done"] = "start" if options.unique_until == "start" else "done"
    hold = options.unique_for if options.unique else None
    return Ties(until=until, hold=hold, result=options.result_ttl or None)


def signing_of(settings: Settings) -> Signing | None:
    """None: no keys are configured."""
    return Signing(settings.signing.keys, settings.signing.require) if settings.signing.keys else None


def travelling(timeout: float | None, declared: Declared) -> float | None:
    """The timeout for the payload, which has whole seconds only: a declared fraction stays out of it, since the worker
    reads the declaration too; another is rounded up."""
    return None if timeout and timeout % 1 and timeout == declared.options.timeout else timeout


def due_in(delay: Duration | datetime, job: str | None = None) -> float:
    """Seconds from now, 0 for a moment that has passed. Raises DeclarationError for what is neither."""
    what = f"job '{job}'" if job else "a job"
    if isinstance(delay, datetime):
        if delay.tzinfo is None:
            raise DeclarationError(
                f"option delay of {what}: {delay} has no time zone: write datetime.now(timezone.utc) + ..."
            )
        return max(0.0, delay.timestamp() - time.time())
    try:
        return span_in_code(delay)
    except ValueError as error:
        raise DeclarationError(f"option delay of {what}: {error}") from None
