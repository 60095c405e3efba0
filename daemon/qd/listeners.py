"""Who hears of an event: what `@app.on(JobFailed)` adds. The worker, the scheduler and the bus emit."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from qd.errors import DeclarationError, EndJob, Settled
from qd.events import Event

Listener = Callable[[Any], object]


class Listeners:
    """Who hears what. A listener of a base class hears its descendants too; the order is that of `add`.

    worker: the pid of the worker that this process is; 0 in a producer.
    """

    def __init__(self) -> None:
        self.worker = 0
        self._added: list[tuple[type[Event], Listener]] = []
        self._found: dict[type[Event], tuple[Listener, ...]] = {}

    def add(self, event: type[Event], listener: Listener) -> None:
        check_event(event)
        check_listener(listener, event)
        self._added.append((event, listener))
        self._found.clear()

    def of(self, event: type[Event]) -> tuple[Listener, ...]:
        found = self._found.get(event)
        if found is None:
            found = tuple([listener for heard, listener in self._added if issubclass(event, heard)])
            self._found[event] = found
        return found

    def has(self, event: type[Event]) -> bool:
        return bool(self.of(event))

    def emit(self, event: Event) -> bool:
        """Tell every listener. False when one of them returned False (only Looping asks).

        A listener that raises is logged and harms nothing; what ends a job from outside (EndJob, Settled) goes through. So
        does what is no Exception outside a worker, where Ctrl-C is meant for the program, and in a copy of a worker that a
        listener has forked, which is to end.
        """
        agreed = True
        for listener in self.of(type(event)):
            try:
                agreed = listener(event) is not False and agreed
            except (EndJob, Settled):
                raise
            except BaseException as error:
                if not isinstance(error, Exception) and os.getpid() != self.worker:
                    raise
                complain(listener, event)
        return agreed


def check_event(event: object) -> None:
    """Raises DeclarationError."""
    if not (isinstance(event, type) and issubclass(event, Event)):
        raise DeclarationError(
            f"{event!r} is not an event (one of those in qd.events, or a class derived from qd.events.Event)"
        )


def check_listener(listener: Listener, event: type[Event]) -> None:
    """Raises DeclarationError: it would never run, or could not be called with one event."""
    name = getattr(listener, "__qualname__", None) or repr(listener)
    if not callable(listener):
        raise DeclarationError(
            f"{listener!r} is no listener of {event.__name__}: write a function that takes the event"
        )
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
        raise DeclarationError(f"the listener {name} is async and would never run: make it a def")
    try:
        inspect.signature(listener).bind(event)
    except TypeError as error:
        raise DeclarationError(f"the listener {name} cannot be called with one {event.__name__}: {error}") from None
    except ValueError:
        pass  # a builtin, which has no signature


def complain(listener: Listener, event: Event) -> None:
    import logging  # not on the way of `import qd`

    name = getattr(listener, "__qualname__", repr(listener))
    logging.getLogger("qd.events").exception("the listener %s of %s raised", name, type(event).__name__)
