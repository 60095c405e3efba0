"""What `qd work` and `qd doctor` find out about a beanstalkd and its tubes before any work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import greenstalk

from qd.connectors.beanstalkd.target import Target, refused_name
from qd.connectors.beanstalkd.wire import Client, Wire
from qd.errors import ConnectionLost, ServerRefused

if TYPE_CHECKING:
    from qd.config import ConnectionSettings

PATIENCE = 1.0  # seconds to connect, and for each answer: a start does not wait for a server that hangs


def look(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """What is odd about it, in words. A server that does not answer is waited for later."""
    wire = Wire(at.url or "")
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


def left_buried(client: Client, server: Target, queue: str) -> str:
    """The warning about jobs that another program has buried in this tube, "" if there are none."""
    with suppress(greenstalk.NotFoundError):
        if count := client.stats_tube(queue)["current-jobs-buried"]:
            what = "a job" if count == 1 else f"{count} jobs"
            way = f"type `use {queue}` and `kick {count}` into `nc -C {server.host} {server.port}`"
            return f"tube '{queue}' has {what} that another program has buried: no worker runs it before a kick ({way})"
    return ""
