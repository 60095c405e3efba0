"""Jobs that take an object whole: the handler of a command (app.map), a queued listener of an event (app.on(..., queue=)).

    SendInvoice(order_id=7)  ->  {"order_id": 7}  ->  handler(SendInvoice(order_id=7))

The fields travel as the arguments of any job do. What the handler takes beside the object is provided on the worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from qd.arguments import PROVIDED, Known, Parameter, Signature, object_fields, parameters_of
from qd.errors import DeclarationError
from qd.jobs.calls import same
from qd.jobs.registry import Declared
from qd.options import JobOptions

C_contra = TypeVar("C_contra", contravariant=True)


class Handles(Protocol[C_contra]):
    """A class that handles commands: made anew for each, without arguments."""

    def handle(self, command: C_contra, /) -> object: ...


class DeclaredObject(Declared):
    """kind: the class of the objects. handler: called with one of them."""

    def __init__(
        self, name: str, kind: type, handler: Callable[..., Any], options: JobOptions, where: str, known: Known
    ) -> None:
        self._fields = object_fields(kind)
        call, asked = handler_of(handler, kind)
        if clash := sorted({each.name for each in asked} & {each.name for each in self._fields.values()}):
            raise DeclarationError(
                f"the handler of {kind.__qualname__} takes '{clash[0]}', and so is a field called: rename one"
            )
        signature = Signature(f"{kind.__qualname__}()", [*self._fields.values(), *asked], None, known)
        super().__init__(name, partial(handle, kind, call, [each.name for each in asked]), signature, options, where)
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(getattr(handler, "handle", handler)))

    def encode_object(self, thing: object) -> bytes:
        """The `data` of an object, its defaults left out. Raises ArgumentError."""
        given = {
            parameter.name: value
            for attribute, parameter in self._fields.items()
            if not same(value := getattr(thing, attribute), parameter.default)
        }
        return self.encode((), given)


def handle(kind: type, call: Callable[..., Any], asked: list[str], /, **fields: Any) -> object:
    beside = {name: fields.pop(name) for name in asked if name in fields}
    return call(kind(**fields), **beside)


def handler_of(handler: Any, kind: type) -> tuple[Callable[..., Any], list[Parameter]]:
    """What is called with an object, and what it takes beside it. Raises DeclarationError."""
    title = f"the handler of {kind.__qualname__}, {getattr(handler, '__qualname__', None) or repr(handler)},"
    if isinstance(handler, type):
        method = getattr(handler, "handle", None)
        if not callable(method):
            raise DeclarationError(f"{title} has no handle(): define it, or give a function")
        try:
            inspect.signature(handler).bind()
        except (TypeError, ValueError):
            raise DeclarationError(f"{title} cannot be made without arguments") from None
        return partial(made_and_handled, handler), beside(method, 2, title)
    if not callable(handler):
        raise DeclarationError(f"{title} cannot be called: give a function that takes the {kind.__qualname__}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise DeclarationError(f"{title} is a generator, whose body would never run: return instead of yield")
    return handler, beside(handler, 1, title)


def made_and_handled(handler: Callable[[], Any], thing: object, /, **beside: Any) -> object:
    return handler().handle(thing, **beside)


def beside(function: Callable[..., Any], own: int, title: str) -> list[Parameter]:
    """Its parameters after the first `own` that the app is to provide: those without another default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    takes = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(takes) < own and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise DeclarationError(f"{title} takes no argument: it is called with the object")
    rest, _ = parameters_of(function, skip=own)
    return [
        each._replace(default=PROVIDED, required=False) for each in rest if each.required or each.default is PROVIDED
    ]
