"""The first look of `qd work` at its servers, before anything runs: what only a person can mend is said, and ends the start.

    the connection can be worked on     a place for what it keeps beside its jobs, queues of names that it takes
    what its driver knows               tables, queues that are there, what takes jobs away too soon
    what this user may do               its rights, and one question to each queue
    the control connection              the same, as far as it is another one

A server that is away, or busy, is no such thing: workers wait for it. Later, whatever is wrong is tried again. What the
configuration alone tells was refused before (template.imported).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from qd.connectors.drivers import extras_named
from qd.connectors.manager import open_memory, open_queue, what_is_odd
from qd.errors import ConfigError, ConnectionLost, NeedsMending, ServerRefused

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings
    from qd.connectors.keeping import Keeping

PATIENCE = 1.0  # seconds to connect, and for each answer
TOKEN = "first-look"  # it reserves nothing


def look(app: Qd) -> list[str]:
    """What is odd, though it can be worked with. Raises ConfigError: somebody has to mend something first."""
    settings, work, own = app.settings, app.settings.work, app.connections.own
    opened = partial(open_queue, token=TOKEN, title="qd: start", patience=PATIENCE, own=own)
    with extras_named(), closing(opened(settings, work.connection)) as queue:
        odd = what_is_odd(settings, work.connection, work.queues)
        if not work.only_schedule:
            with waited_for():
                try_queue(cast("Keeping", queue), work.queues)
        if settings.control != work.connection:
            odd += what_is_odd(settings, settings.control, ())
            with waited_for():
                try_control(settings)
    return odd


@contextmanager
def waited_for() -> Iterator[None]:
    """What a server says that only a person can mend becomes a ConfigError; one that is away may come later."""
    try:
        yield
    except NeedsMending as error:
        raise ConfigError(str(error)) from None
    except (ConnectionLost, ServerRefused):
        pass


def try_queue(queue: Keeping, queues: Sequence[str]) -> None:
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
