"""app.payload_hook: what the app adds to each payload it makes, where Laravel's createPayloadUsing puts it. route.py and
send.py ask here, where there is a hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from qd.errors import ArgumentError, DeclarationError
from qd.payload import OWN_KEYS, added

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
            return added(body, id, more)
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
