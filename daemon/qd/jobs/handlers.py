"""Who handles an app's commands, and who is sent its events: what app.map and app.on(..., queue=) have added."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from qd import events
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.declare import refuse
from qd.jobs.objects import DeclaredObject
from qd.jobs.plan import Plan
from qd.jobs.registry import Declared, Registry
from qd.listeners import check_event
from qd.options import JobOptions
from qd.units import did_you_mean


class Handlers:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._commands: dict[type, tuple[Plan, DeclaredObject]] = {}
        self._listening: list[tuple[type[events.Event], Plan, DeclaredObject]] = []

    def map(self, kind: type, handler: Callable[..., Any], name: str | None, options: Mapping[str, Any]) -> None:
        """Raises DeclarationError."""
        if not isinstance(kind, type):
            raise DeclarationError(f"{kind!r} is not a class of commands: app.map(SendInvoice, send_invoice)")
        if kind in self._commands:
            raise DeclarationError(
                f"{kind.__qualname__} has a handler already: a command has one; for more, emit an event"
            )
        self._commands[kind] = self._declared(kind, handler, name_of(kind, name), options)

    def declared(self, kind: object) -> Declared | None:
        """The job of the commands of class `kind`. None: nothing handles them."""
        found = self._commands.get(kind) if isinstance(kind, type) else None
        return found and found[1]

    def command(self, thing: object) -> tuple[Plan, bytes]:
        """Its plan and `data`. Raises ArgumentError: nothing handles it, or it cannot be sent."""
        found = self._commands.get(type(thing))
        if found is None:
            kind = type(thing).__qualname__
            near = did_you_mean(kind, [known.__qualname__ for known in self._commands])
            raise ArgumentError(f"nothing handles a {kind}{near}: call app.map({kind}, ...) first")
        return found[0], found[1].encode_object(thing)

    def listen(
        self, event: type[events.Event], listener: Callable[..., Any], name: str | None, options: Mapping[str, Any]
    ) -> None:
        """Raises DeclarationError."""
        check_event(event)
        if event.__module__ == events.__name__:
            raise DeclarationError(
                f"{event.__name__} is one of qd's own events and cannot travel: listen without options, and dispatch a job"
            )
        plan, declared = self._declared(event, listener, name_of(listener, name), options)
        self._listening.append((event, plan, declared))

    def heard(self, event: events.Event) -> list[tuple[Plan, bytes]]:
        """What its queued listeners are sent. Raises ArgumentError."""
        return [
            (plan, declared.encode_object(event)) for kind, plan, declared in self._listening if isinstance(event, kind)
        ]

    def _declared(
        self, kind: type, handler: Callable[..., Any], name: str, said: Mapping[str, Any]
    ) -> tuple[Plan, DeclaredObject]:
        if said.get("raw"):
            raise DeclarationError(f"the handler of {kind.__qualname__} cannot be raw: it takes the object")
        frame = sys._getframe(3)  # who called app.map, or the decorator of app.on
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        options = JobOptions.read({option: value for option, value in said.items() if option not in SENDING}, name)
        declared = DeclaredObject(name, kind, handler, options, where, self._registry.known)
        self._registry.add(declared)
        sending = {option: value for option, value in said.items() if option in SENDING}
        plan = Plan(declared, options)
        return plan.using(sending) if sending else plan, declared


SENDING = ("delay", "key", "after_commit")  # of Sending: not of what a job is


def name_of(target: Any, name: str | None) -> str:
    """The job's: the given one, or module.function. Raises DeclarationError."""
    if name is not None:
        if not isinstance(name, str) or not name.strip():
            refuse(target, "has an empty name", 'give one like "shop.mail"')
        return name
    title = getattr(target, "__qualname__", None)
    if title is None or "<lambda>" in title:
        refuse(target, "has no name a worker could find", "write a function with def, or give a name")
    if target.__module__ == "__main__":
        refuse(target, "stands in __main__, which has another name in a worker", "give a name")
    return f"{target.__module__}.{title}".replace("<locals>.", "")
