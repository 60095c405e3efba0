"""The first look of `qd work` at its servers, before anything runs: what only a person can mend is said, and ends the start.

A server that is away, or busy, is no such thing: workers wait for it. Later, whatever is wrong is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from qd.connectors.manager import Factory, extras_named, open_memory, open_queue
from qd.errors import ConfigError, ConnectionLost, NeedsMending, ServerRefused

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings
    from qd.connectors.keeping import Keeping

PATIENCE = 1.0  # seconds to connect, and for each answer
TOKEN = "first-look"  # it reserves nothing


def look(app: Qd) -> None:
    """Raises ConfigError: somebody has to mend something first."""
    with extras_named():  # a database's driver is loaded by its first call
        try_all(app.settings, app.connections.own)


def try_all(settings: Settings, own: Mapping[str, Factory]) -> None:
    queue = open_queue(settings, settings.work.connection, token=TOKEN, title="qd: start", patience=PATIENCE, own=own)
    try:
        if not settings.work.only_schedule:
            try_queue(cast("Keeping", queue), settings)
        if settings.control != settings.work.connection:
            try_control(settings)
    except NeedsMending as error:
        raise ConfigError(str(error)) from None
    except (ConnectionLost, ServerRefused):
        return
    finally:
        queue.close()


def try_queue(queue: Keeping, settings: Settings) -> None:
    queues = settings.work.queues
    lacks = queue.missing_rights(queues[0])
    if lacks:
        words = " ".join(sorted(lacks)).upper()
        raise ConfigError(
            f"user '{queue.user()}' of connection '{queue.settings.name}' may not call {words}: `qd doctor` says how to "
            "grant what is missing"
        )
    for name in queues:
        queue.sizes(name)


def try_control(settings: Settings) -> None:
    space, prefix = open_memory(settings, settings.control, title="qd: start", patience=PATIENCE)
    try:
        space.call("EXISTS", f"{prefix}qd:down")
    finally:
        space.close()
