"""How a connection to beanstalkd is opened, and what `qd work` and `qd doctor` check about its tubes at the start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import greenstalk

from qd.drivers.base import ClientIdentity
from qd.drivers.beanstalkd.broker import Beanstalkd
from qd.drivers.beanstalkd.client import BeanstalkdConnection, Client
from qd.drivers.broker.keeper import BrokerKeeperQueue, open_broker_queue
from qd.drivers.urls import BeanstalkdUrl, refused_name
from qd.errors import ConfigError, ConnectionLost, ServerRefused

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings

PATIENCE = 1.0  # seconds to connect, and for each answer: a start does not wait for a server that hangs


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> BrokerKeeperQueue:
    try:
        backend = Beanstalkd(at.url or "", at.retry_after)
    except ConfigError as error:
        raise ConfigError(f"url of connection '{at.name}' ({at.url_origin}): {error}") from None
    return open_broker_queue(settings, at, who, backend)


def start_warnings(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """Warnings about the server and these tubes. None if the server is unreachable: workers wait for it later."""
    connection = BeanstalkdConnection(at.url or "")
    connection.patience(PATIENCE, PATIENCE)
    try:
        with connection.session() as client:
            warnings = [buried(client, connection.target, queue) for queue in queues if not refused_name(queue)]
            if not client.stats()["binlog-current-index"]:
                lost = "jobs are lost when it stops; start it with -b and a folder"
                warnings.insert(0, f"beanstalkd at {connection.place} has no binlog: {lost}")
            return [warning for warning in warnings if warning]
    except (ConnectionLost, ServerRefused):
        return []
    finally:
        connection.close()


def buried(client: Client, server: BeanstalkdUrl, queue: str) -> str:
    """A warning about jobs that another program has buried in this tube, or ""."""
    with suppress(greenstalk.NotFoundError):
        if count := client.stats_tube(queue)["current-jobs-buried"]:
            what = "a job" if count == 1 else f"{count} jobs"
            way = f"type `use {queue}` and `kick {count}` into `nc -C {server.host} {server.port}`"
            return f"tube '{queue}' has {what} that another program has buried: no worker runs it before a kick ({way})"
    return ""
