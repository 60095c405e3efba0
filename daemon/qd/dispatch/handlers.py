"""Commands and queued listeners: jobs that take one object, declared by app.map and app.on(..., queue=).

    SendInvoice(order_id=7)  ->  {"order_id": 7}  ->  handler(SendInvoice(order_id=7))

The fields of the object are the arguments of the job. The worker provides the handler's other parameters.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from qd import events
from qd.arguments.injection import PROVIDED, Known
from qd.arguments.parameters import Parameter, named, object_fields, parameters_of
from qd.arguments.signature import Signature
from qd.errors import ArgumentError, DeclarationError
from qd.events import check_event
from qd.jobs.job import job_name, same
from qd.jobs.plan import Plan
from qd.jobs.registry import Declared, Registry
from qd.options.kinds import did_you_mean
from qd.options.tables import JobOptions

C_contra = TypeVar("C_contra", contravariant=True)

SENDING = ("delay", "key", "after_commit")  # options of a dispatch, not of a job


class Handles(Protocol[C_contra]):
    """A class that handles commands: one instance per command, made without arguments."""

    def handle(self, command: C_contra, /) -> object: ...


class DeclaredObject(Declared):
    """A job that takes one object. kind: its class. handler: called with the object."""

    def __init__(
        self, name: str, kind: type, handler: Callable[..., Any], options: JobOptions, where: str, known: Known
    ) -> None:
        self._fields = object_fields(kind)
        call, provided = handler_of(handler, kind)
        names = [each.name for each in provided]
        if clash := sorted({*names} & {each.name for each in self._fields.values()}):
            way = "which is also a field: rename one"
            raise DeclarationError(f"the handler of {kind.__qualname__} takes '{clash[0]}', {way}")
        signature = Signature(f"{kind.__qualname__}()", [*self._fields.values(), *provided], None, known)
        super().__init__(name, partial(handle, kind, call, names), signature, options, where)
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(getattr(handler, "handle", handler)))

    def encode_object(self, thing: object) -> bytes:
        """The `data` of an object, without default values. Raises ArgumentError."""
        given = {
            parameter.name: value
            for attribute, parameter in self._fields.items()
            if not same(value := getattr(thing, attribute), parameter.default)
        }
        return self.encode((), given)


def handle(kind: type, call: Callable[..., Any], provided: list[str], /, **fields: Any) -> object:
    others = {name: fields.pop(name) for name in provided if name in fields}
    return call(kind(**fields), **others)


def handler_of(handler: Any, kind: type) -> tuple[Callable[..., Any], list[Parameter]]:
    """The callable that takes the object, and its other parameters. Raises DeclarationError."""
    title = f"the handler of {kind.__qualname__}, {named(handler)},"
    if isinstance(handler, type):
        method = getattr(handler, "handle", None)
        if not callable(method):
            raise DeclarationError(f"{title} has no handle(): define it, or give a function")
        try:
            inspect.signature(handler).bind()
        except (TypeError, ValueError):
            raise DeclarationError(f"{title} cannot be instantiated without arguments") from None
        return lambda thing, /, **others: handler().handle(thing, **others), provided_parameters(method, 2, title)
    if not callable(handler):
        raise DeclarationError(f"{title} is not callable: give a function that takes the {kind.__qualname__}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise DeclarationError(f"{title} is a generator, whose body would never run: return instead of yield")
    return handler, provided_parameters(handler, 1, title)


def provided_parameters(function: Callable[..., Any], own: int, title: str) -> list[Parameter]:
    """The parameters after the first `own` that the app must provide: those without another default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < own and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise DeclarationError(f"{title} takes no argument, but is called with the object")
    rest, _ = parameters_of(function, skip=own)
    return [
        each._replace(default=PROVIDED, required=False) for each in rest if each.required or each.default is PROVIDED
    ]


class Handlers:
    """The handlers of commands and the queued listeners of an app."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._commands: dict[type, tuple[Plan, DeclaredObject]] = {}
        self._listening: list[tuple[type[events.Event], Plan, DeclaredObject]] = []

    def map(self, kind: type, handler: Callable[..., Any], name: str | None, options: Mapping[str, Any]) -> None:
        if not isinstance(kind, type):
            raise DeclarationError(f"{kind!r} is not a class of commands: app.map(SendInvoice, send_invoice)")
        if kind in self._commands:
            way = "for more, emit an event"
            raise DeclarationError(f"{kind.__qualname__} already has a handler, and a command has only one; {way}")
        self._commands[kind] = self._declared(kind, handler, job_name(kind, name), options)

    def declared(self, kind: object) -> Declared | None:
        """The job of the commands of class `kind`. None: they have no handler."""
        found = self._commands.get(kind) if isinstance(kind, type) else None
        return found and found[1]

    def command(self, thing: object) -> tuple[Plan, bytes]:
        """The plan and `data` of a command. Raises ArgumentError: it has no handler, or cannot be sent."""
        found = self._commands.get(type(thing))
        if found is None:
            kind = type(thing).__qualname__
            near = did_you_mean(kind, [known.__qualname__ for known in self._commands])
            raise ArgumentError(f"{kind} has no handler{near}: call app.map({kind}, ...) first")
        return found[0], found[1].encode_object(thing)

    def listen(
        self, event: type[events.Event], listener: Callable[..., Any], name: str | None, options: Mapping[str, Any]
    ) -> None:
        check_event(event)
        if event.__module__ == events.__name__:
            way = "listen without options and dispatch a job"
            raise DeclarationError(f"{event.__name__} is an event of qd itself and cannot be queued: {way}")
        plan, declared = self._declared(event, listener, job_name(listener, name), options)
        self._listening.append((event, plan, declared))

    def jobs_for(self, event: events.Event) -> list[tuple[Plan, bytes]]:
        """The jobs of the queued listeners of an event. Raises ArgumentError."""
        found = [(plan, declared) for kind, plan, declared in self._listening if isinstance(event, kind)]
        return [(plan, declared.encode_object(event)) for plan, declared in found]

    def _declared(
        self, kind: type, handler: Callable[..., Any], name: str, given: Mapping[str, Any]
    ) -> tuple[Plan, DeclaredObject]:
        if given.get("raw"):
            raise DeclarationError(f"the handler of {kind.__qualname__} cannot be raw: it takes the object")
        frame = sys._getframe(3)  # the caller of app.map or of the decorator of app.on
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        sending = {option: given[option] for option in SENDING if option in given}
        options = JobOptions.read({option: value for option, value in given.items() if option not in sending}, name)
        declared = DeclaredObject(name, kind, handler, options, where, self._registry.known)
        self._registry.add(declared)
        plan = Plan(declared, options)
        return plan.using(sending) if sending else plan, declared
