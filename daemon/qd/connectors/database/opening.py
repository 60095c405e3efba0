"""How the manager opens queues and keyspaces in a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd.connectors.database import rights
from qd.connectors.database.jobsql import JobSql
from qd.connectors.database.keyspace import DatabaseSpace
from qd.connectors.database.link import Link
from qd.connectors.database.migrate import check
from qd.connectors.database.queue import DatabaseQueue
from qd.connectors.database.table import JobRows
from qd.connectors.keyspace.queue import bounds_of
from qd.errors import ConfigError, ConnectionLost, NeedsMending, ServerRefused

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.reserver import Reserver

START = 5.0  # seconds to connect and for each answer, before the first worker


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> DatabaseQueue:
    space = open_space(at, who.title, who.patience)
    return DatabaseQueue(at, space, who, keep=bounds_of(settings.failed), max_payload=settings.max_payload)


def look(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """Whether the tables are there and may be used: nothing is odd, or it raises ConfigError. A server that is away, or too
    busy, is waited for by those who work. It loads what workers will need, before they are forked."""
    link = Link(at.url or "", title="qd:start", connect_timeout=START, timeout=START)
    try:
        check(link, at.table)
        rights.check(link, at.table)
    except NeedsMending as error:
        raise ConfigError(str(error)) from None
    except (ConnectionLost, ServerRefused):
        pass
    finally:
        link.close()
    return []


def open_space(at: ConnectionSettings, title: str, patience: float) -> DatabaseSpace:
    link = Link(at.url or "", title=title, connect_timeout=patience, timeout=patience)
    return DatabaseSpace(link, JobRows(JobSql(link.server, at.table), at.table), prefix=at.prefix)
