"""app.payload_hook: what the app adds to each payload it makes, where Laravel's createPayloadUsing puts it. route.py and
send.py ask here, where there is a hook.

A job that is made and not sent yet: its payload, and where it goes. route.py makes them, send.py posts them;
chains and batches keep some for later.

What stays the same from dispatch to dispatch of a plan: connection, queue, the payload's options. send.py
asks here for each parcel.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import asdict

from qd.arguments.signature import Pattern
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.plan import Duration, Plan, patterns
from qd.jobs.registry import Declared
from qd.options.kinds import span_in_code
from qd.options.tables import JobOptions
from qd.payload.build import OWN_KEYS, PayloadTemplate, make, with_extra, with_relations
from qd.payload.format import NO_DATA, ChainedJob, Relations, key_of, plain_name
from qd.payload.signing import Signing
from qd.payload.size import check as size_check
from qd.payload.size import harmless

if TYPE_CHECKING:
    from qd.config.settings import Settings


PayloadHook = Callable[[str, str, Mapping[str, Any]], Mapping[str, object]]


class PayloadHooks(list[PayloadHook]):
    """Called with (connection, queue, payload), in the order in which they were added: each sees what those before it have
    put in."""

    def add(self, hook: PayloadHook) -> None:
        """Raises DeclarationError: it cannot be called so."""
        check(hook)
        self.append(hook)

    def put_into(self, body: bytes, id: str, connection: str, queue: str) -> bytes:
        """Raises ArgumentError: one of qd's own keys, or what is no JSON; and what a hook raises."""
        payload: dict[str, Any] = msgspec.json.decode(body)
        more: dict[str, object] = {}
        for hook in self:
            given = hook(connection, queue, {**payload, **more})
            if not isinstance(given, Mapping):
                raise ArgumentError(f"the payload hook {named(hook)} returned {given!r}, which is no mapping of keys")
            if taken := [key for key in given if key in OWN_KEYS or not isinstance(key, str)]:
                raise ArgumentError(
                    f"the payload hook {named(hook)} gave {taken[0]!r}, a key of qd's own: name it otherwise"
                )
            more.update(given)
        try:
            return with_extra(body, id, more)
        except ArgumentError as error:
            raise ArgumentError(f"job '{payload['job']}': {error} (from a payload hook)") from None


def named(hook: object) -> str:
    return getattr(hook, "__qualname__", None) or repr(hook)


def check(hook: Any) -> None:
    title = f"the payload hook {named(hook)}"
    if not callable(hook):
        raise DeclarationError(f"{title} cannot be called: write def hook(connection, queue, payload)")
    if inspect.iscoroutinefunction(hook):
        raise DeclarationError(f"{title} is async and would never run: make it a def")
    try:
        inspect.signature(hook).bind("", "", {})
    except TypeError as error:
        raise DeclarationError(f"{title} cannot be called with (connection, queue, payload): {error}") from None
    except ValueError:
        pass  # a builtin, which has no signature


class Message(msgspec.Struct, frozen=True, gc=False):
    """delay: seconds, 0 for at once. A raw payload has no name, id and uuid: only the payload knows them. plan: None for
    what is not declared here. data: the arguments, JSON."""

    connection: str
    queue: str
    body: bytes
    delay: float = 0.0
    name: str = ""
    id: str = ""
    uuid: str = ""
    data: bytes = b""
    plan: Plan | None = None
    ties: Relations | None = None

    @property
    def link(self) -> ChainedJob:
        """The same as another payload carries it."""
        return ChainedJob(self.queue, self.delay, self.body.decode())


UNTIED = Relations()


class Route(msgspec.Struct, frozen=True):
    """Where jobs of a plan go, and what their payloads say. retry_for: seconds after they are due."""

    settings: Settings
    connection: str
    queue: str
    job: str
    skeleton: PayloadTemplate
    retry_for: float | None
    signing: Signing | None
    display: Pattern | None  # where the arguments stand in the name for people
    ties: Relations | None  # of every job of the plan
    unique: Pattern | None
    hooks: PayloadHooks
    harmless: int  # bytes of a payload that needs no check

    def parcel(
        self, plan: Plan, data: bytes, uuid: str, id: str, ties: Relations | None = None, now: float | None = None
    ) -> Message:
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
            body = with_relations(body, id, ties)
        if self.signing is not None:
            body = self.signing.signed(body, uuid, id, self.job, data or NO_DATA)
        if len(body) > self.harmless:
            size_check(body, self.job, self.settings.max_payload, self.settings.max_depth, data)
        return Message(self.connection, self.queue, body, delay, self.job, id, uuid, data, plan, ties)

    def _tied(self, plan: Plan, data: bytes, id: str, given: Relations | None) -> Relations:
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
        return Relations(**said)


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
        PayloadTemplate(fixed, options.retry_for is not None),
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


def ties_of(options: JobOptions) -> Relations | None:
    """What every job with these options is tied to; None for a plain one."""
    if options.unique is None and not options.result_ttl:
        return None
    until: Literal["start", "done"] = "start" if options.unique_until == "start" else "done"
    hold = options.unique_for if options.unique else None
    return Relations(until=until, hold=hold, result=options.result_ttl or None)


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
