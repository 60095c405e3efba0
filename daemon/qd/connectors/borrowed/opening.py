"""How the manager opens a connection that borrows its keyspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.borrowed.backend import Backend
from qd.connectors.borrowed.keeping import BorrowedKeeping
from qd.connectors.borrowed.memory import Memory
from qd.connectors.keyspace.base import Keyspace
from qd.connectors.keyspace.queue import bounds_of
from qd.connectors.manager import borrowed_prefix, needs_memory, open_memory
from qd.connectors.reserver import Reserver
from qd.errors import ConfigError, ServerRefused

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings


def open_borrowed(
    settings: Settings,
    at: ConnectionSettings,
    who: Reserver,
    backend: Backend,
    kind: type[BorrowedKeeping] = BorrowedKeeping,
) -> BorrowedKeeping:
    """Raises ConfigError for a worker or a keeper where there is no keyspace to borrow; others may still push."""

    def space() -> Keyspace:
        return open_memory(settings, at.name, title=who.title, patience=who.patience)[0]

    if who.token:
        needs_memory(settings, at.name)
        for name in settings.work.queues if at.name == settings.work.connection else ():
            try:
                backend.check(name)
            except ServerRefused as error:
                raise ConfigError(f"connection '{at.name}': {error}") from None
    queue = kind(
        at,
        backend,
        Memory(space, settings.connection(settings.control).driver if settings.control else ""),
        borrowed_prefix(settings, at.name),
        who,
        keep=bounds_of(settings.failed),
        max_payload=settings.max_payload,
    )
    queue.patience(who.patience, who.patience)
    return queue
