"""How a job becomes a Message: its payload, and where it is sent.

    Plan -> Route -> message() -> Message

A Route is what all dispatches of one plan share: connection, queue, options of the payload. PayloadHooks are the functions
of app.payload_hook, which add keys to each payload, where Laravel's createPayloadUsing adds them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import asdict

from qd.arguments.parameters import check_callable, named
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.plan import Duration, Plan, patterns
from qd.jobs.policy import waits
from qd.jobs.registry import Declared
from qd.options.kinds import seconds_of
from qd.options.tables import JobOptions
from qd.payload import encryption
from qd.payload.build import OWN_KEYS, PayloadTemplate, make, with_due, with_extra, with_relations, without_due
from qd.payload.format import NO_DATA, ChainedJob, Payload, Relations, check, harmless, key_of, plain_name
from qd.payload.signing import Signing

if TYPE_CHECKING:
    from qd.config.settings import Settings


PayloadHook = Callable[[str, str, Mapping[str, Any]], Mapping[str, object]]


class PayloadHooks(list[PayloadHook]):
    """Called with (connection, queue, payload) in the order in which they were added. Each sees the keys of those before."""

    def add(self, hook: PayloadHook) -> None:
        """Raises DeclarationError if it cannot be called that way."""
        check_callable(f"the payload hook {named(hook)}", hook, ("", "", {}), "(connection, queue, payload)")
        self.append(hook)

    def put_into(self, body: bytes, id: str, connection: str, queue: str) -> bytes:
        """Raises ArgumentError for a key that qd uses and for values that are not JSON; and what a hook raises."""
        payload: dict[str, Any] = msgspec.json.decode(body)
        more: dict[str, object] = {}
        for hook in self:
            given = hook(connection, queue, {**payload, **more})
            if not isinstance(given, Mapping):
                raise ArgumentError(f"the payload hook {named(hook)} returned {given!r}, which is not a mapping")
            if taken := [key for key in given if key in OWN_KEYS or not isinstance(key, str)]:
                raise ArgumentError(
                    f"the payload hook {named(hook)} returned {taken[0]!r}, a key that qd uses: rename it"
                )
            more.update(given)
        try:
            return with_extra(body, id, more)
        except ArgumentError as error:
            raise ArgumentError(f"job '{payload['job']}': {error} (from a payload hook)") from None


class Message(msgspec.Struct, frozen=True, gc=False):
    """A job to be sent. delay: seconds. data: the arguments as JSON.

    name, id and uuid are empty for raw payloads. plan: None for jobs not declared in this app.
    """

    connection: str
    queue: str
    body: bytes
    delay: float = 0.0
    name: str = ""
    id: str = ""
    uuid: str = ""
    data: bytes = b""
    plan: Plan | None = None
    relations: Relations | None = None

    @property
    def link(self) -> ChainedJob:
        """The job as the payload of another one carries it."""
        return ChainedJob(self.queue, self.delay, without_due(self.body).decode())


NO_RELATIONS = Relations()


class Route:
    """Where jobs of a plan are sent, and what their payloads share."""

    def __init__(self, declared: Declared, options: JobOptions, settings: Settings, hooks: PayloadHooks) -> None:
        connection = settings.connection(options.connection)
        self.connection, self.queue, self.job = connection.name, options.queue or connection.queue, declared.name
        self.settings, self.signing, self.hooks = settings, signing_of(settings), hooks
        self.harmless = harmless(settings.max_payload, settings.max_depth)  # up to this many bytes need no check
        self.retry_for = options.retry_for  # seconds after they are due
        self.encrypted = options.encrypted
        self.relations: Relations | None = None  # of every job of the plan
        if options.unique is not None or options.result_ttl:
            until: Literal["start", "done"] = "start" if options.unique_until == "start" else "done"
            hold = options.unique_for if options.unique else None
            self.relations = Relations(until=until, hold=hold, result=options.result_ttl or None)
        display, self.unique = patterns(declared, options)
        self.display = display if display is not None and display.names else None  # one that contains arguments
        timeout = options.timeout
        if timeout and timeout % 1 and timeout == declared.options.timeout:
            timeout = None  # payloads have whole seconds only: the worker reads the fraction in the declaration
        tries = options.tries if options.retry_for is None else None  # with retry_for they do not count
        fixed = partial(
            make,
            declared.name,
            display=None if display is None or display.names else display.filled(b""),
            max_tries=options.tries,
            max_exceptions=options.max_exceptions,
            fail_on_timeout=bool(options.fail_on_timeout),
            backoff=None if options.backoff is None else waits(options.backoff, tries),
            jitter=None if options.jitter == declared.options.jitter else options.jitter,
            timeout=timeout,
            delete_when_missing=options.delete_when_missing,
            version=declared.version,
            extra={"tags": options.tags} if options.tags else None,
        )
        self.template = PayloadTemplate(fixed, options.retry_for is not None)

    def message(
        self, plan: Plan, data: bytes, uuid: str, id: str, relations: Relations | None = None, now: float | None = None
    ) -> Message:
        """now: unix seconds of its creation, if not this moment. Raises ArgumentError if it is too large, DeclarationError
        for an invalid delay."""
        delay = 0.0 if plan.delay is None else due_in(plan.delay, self.job)
        now = time.time() if now is None else now
        if self.relations is not None or relations is not None or plan.key is not None:
            relations = self._relations(plan, data, id, relations)
            if relations.unique is not None:
                id = uuid  # the owner of the lock, and the id that a skipped dispatch returns
        until = None if self.retry_for is None else math.ceil(now + delay + self.retry_for)
        display = None if self.display is None else self.display.filled(data)
        sent = data or NO_DATA
        if self.encrypted:
            check(data, self.job, 0, self.settings.max_depth)  # in the payload its depth is hidden
            sent = encryption.sealed(sent, self.settings.encryption.keys, self.job)
        body = self.template.filled(sent, uuid, id, int(now), until, display)
        if self.hooks:
            body = self.hooks.put_into(body, id, self.connection, self.queue)
        if relations is not None:
            body = with_relations(body, id, relations)
        if self.signing is not None:
            takes = relations.takes if relations else None
            body = self.signing.signed(body, uuid, id, self.job, sent, takes, plan.declared.version)
        body = with_due(body, now + delay)
        if len(body) > self.harmless:
            check(body, self.job, self.settings.max_payload, self.settings.max_depth, data)
        return Message(self.connection, self.queue, body, delay, self.job, id, uuid, data, plan, relations)

    def _relations(self, plan: Plan, data: bytes, id: str, given: Relations | None) -> Relations:
        """The relations of the declaration, the key, and those `given` by a chain or batch."""
        found = {} if self.relations is None else asdict(self.relations)
        if given is not None:
            found |= {name: value for name, value in asdict(given).items() if value != getattr(NO_RELATIONS, name)}
        if self.unique is not None:
            found["unique"] = name_of(self.job, self.unique.key(data))
        if plan.key is not None:
            if self.unique is not None:
                raise DeclarationError(
                    f"job '{self.job}' has unique= and is sent with key='{plan.key}', which makes it unique already: "
                    "remove one of them"
                )
            found["key"] = key_of(id, name_of(self.job, plan.key))
        return Relations(**found)


def name_of(job: str, key: str) -> str:
    """The name of a lock or key of this job."""
    return plain_name(f"{job}:{key}")


def signing_of(settings: Settings) -> Signing | None:
    return Signing(settings.signing.keys, settings.signing.require) if settings.signing.keys else None


def opened(payload: Payload, declared: Declared | None, settings: Settings) -> Payload:
    """The payload with its arguments, which may be encrypted. Raises as encryption.opened."""
    if declared is None or not declared.options.encrypted:
        return payload
    data = encryption.opened(bytes(payload.data), settings.encryption.keys)
    return msgspec.structs.replace(payload, data=msgspec.Raw(data))


def due_in(delay: Duration | datetime, job: str | None = None) -> float:
    """Seconds from now, 0 for a time in the past. Raises DeclarationError for an invalid delay."""
    what = f"job '{job}'" if job else "a job"
    if isinstance(delay, datetime):
        if delay.tzinfo is None:
            raise DeclarationError(
                f"option delay of {what}: {delay} has no time zone: write datetime.now(timezone.utc) + ..."
            )
        return max(0.0, delay.timestamp() - time.time())
    return seconds_of(f"option delay of {what}", delay)
