"""What lock and limiter are made of: names, lengths of time, owners, and the server that is asked."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeVar

from qd.bus.asking import store_of
from qd.connectors.connections import Connections
from qd.errors import ArgumentError, ConnectionLost, ServerBusy, Unreachable
from qd.process.shield import shield
from qd.store.base import Store
from qd.units import span_in_code

T = TypeVar("T")
PATIENCE = 5.0  # seconds the server may take to answer, as a connection has them anyway
ALREADY = nullcontext()
LONGEST = 200  # characters of a name
AWAY = 60.0  # seconds for which a server may be away while one waits without a timeout


class Owner(NamedTuple):
    """Who has a lock. id: of this one taking of it."""

    host: str
    pid: int
    id: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else f"somebody ('{self.id}')"


def new_owner() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"


def read_owner(text: str) -> Owner:
    """Of one that another program has written, the text is all that is known: host "", pid 0."""
    host, _, rest = text.partition("/")
    pid, slash, id = rest.partition("/")
    return Owner(host, int(pid), id) if slash and pid.isdecimal() else Owner("", 0, text)


class Place:
    """The store on the connection called `connection` (None: the default), as the calling thread sees it."""

    def __init__(self, connections: Connections, connection: str | None) -> None:
        self._connections, self._connection = connections, connection
        self.server = (id(connections), connection)  # what is one server, as far as is known here

    @property
    def store(self) -> Store:
        """Raises ConfigError."""
        return store_of(self._connections.get(self._connection))

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._connections.get(self._connection).within(seconds)

    def ask(self, ask: Callable[[Store], T], patience: float = PATIENCE) -> T:
        """What the store says. An alarm waits until it has; raises ConnectionLost, ServerRefused, ConfigError.

        Asked once more where the connection broke at once, as one does that the server has closed: whatever is asked here
        may be asked twice.
        """
        queue, began = self._connections.get(self._connection), time.monotonic()
        with shield, queue.within(patience) if patience < PATIENCE else ALREADY:
            try:
                return ask(store_of(queue))
            except (Unreachable, ServerBusy):
                raise
            except ConnectionLost:
                if time.monotonic() - began > patience / 2:
                    raise
            return ask(store_of(queue))


def checked_name(what: str, name: object) -> str:
    """Raises ArgumentError."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f'the name of a {what} is {name!r}: give a text, app.{what}("report", ...)')
    odd = next((char for char in name if char in "{}" or not char.isprintable()), None)
    if odd is not None:
        raise ArgumentError(f"the name of the {what} {name!r} has a {odd!r}: give printable characters without braces")
    if len(name) > LONGEST:
        raise ArgumentError(
            f"the name of the {what} '{name[:40]}...' has {len(name)} characters: give {LONGEST} at most"
        )
    return name


def checked_ttl(name: str, ttl: object, what: str = "ttl") -> float:
    """Seconds, at least a millisecond. Raises ArgumentError."""
    if ttl is None or ttl is False or ttl == 0:
        raise ArgumentError(
            f"the lock '{name}' has {what}={ttl!r}: without one it would stay for ever when its owner dies; give seconds"
            f', and renew=True for work of unknown length: app.lock("{name}", ttl=30, renew=True)'
        )
    try:
        seconds = span_in_code(ttl)
    except ValueError as error:
        raise ArgumentError(f"the lock '{name}': {what}: {error}") from None
    if seconds < 0.001:
        raise ArgumentError(f"the lock '{name}': {what}={seconds:g} is less than a millisecond: give seconds, ttl=30")
    return seconds


def checked_timeout(whose: str, timeout: object) -> float | None:
    """Seconds; None: without end. Raises ArgumentError."""
    if timeout is None:
        return None
    try:
        return span_in_code(timeout)
    except ValueError as error:
        raise ArgumentError(f"{whose}: timeout: {error}") from None
