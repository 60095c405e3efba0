"""How the manager opens a connection to beanstalkd.

What `qd work` and `qd doctor` find out about a beanstalkd and its tubes before any work.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import greenstalk

from qd.drivers.base import ClientIdentity
from qd.drivers.beanstalkd.broker import Beanstalkd
from qd.drivers.beanstalkd.client import BeanstalkdConnection, Client
from qd.drivers.broker.keeper import BorrowedKeeping, open_borrowed
from qd.drivers.urls import BeanstalkdUrl, refused_name
from qd.errors import ConfigError, ConnectionLost, ServerRefused

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> BorrowedKeeping:
    try:
        backend = Beanstalkd(at.url or "", at.retry_after)
    except ConfigError as error:
        raise ConfigError(f"url of connection '{at.name}' ({at.url_origin}): {error}") from None
    return open_borrowed(settings, at, who, backend)


PATIENCE = 1.0  # seconds to connect, and for each answer: a start does not wait for a server that hangs


def look(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """What is odd about it, in words. A server that does not answer is waited for later."""
    wire = BeanstalkdConnection(at.url or "")
    wire.patience(PATIENCE, PATIENCE)
    try:
        with wire.said() as client:
            buried = [
                hint
                for queue in queues
                if not refused_name(queue) and (hint := left_buried(client, wire.target, queue))
            ]
            return [*forgets(client, wire.place), *buried]
    except (ConnectionLost, ServerRefused):
        return []
    finally:
        wire.close()


def forgets(client: Client, place: str) -> list[str]:
    if client.stats()["binlog-current-index"]:
        return []
    return [f"beanstalkd at {place} has no binlog: what waits is lost when it ends; start it with -b and a folder"]


def left_buried(client: Client, server: BeanstalkdUrl, queue: str) -> str:
    """The warning about jobs that another program has buried in this tube, "" if there are none."""
    with suppress(greenstalk.NotFoundError):
        if count := client.stats_tube(queue)["current-jobs-buried"]:
            what = "a job" if count == 1 else f"{count} jobs"
            way = f"type `use {queue}` and `kick {count}` into `nc -C {server.host} {server.port}`"
            return f"tube '{queue}' has {what} that another program has buried: no worker runs it before a kick ({way})"
    return ""
