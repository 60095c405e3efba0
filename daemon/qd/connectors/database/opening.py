"""How the manager opens queues and keyspaces in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.database.jobrows import JobRows
from qd.connectors.database.jobsql import JobSql
from qd.connectors.database.keyspace import DatabaseSpace
from qd.connectors.database.link import Link
from qd.connectors.database.queue import DatabaseQueue
from qd.connectors.keyspace.queue import Bounds

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.manager import Reserver


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> DatabaseQueue:
    kept = settings.failed
    return DatabaseQueue(
        at,
        open_space(at, who.title, who.patience),
        token=who.token,
        slot=who.slot,
        turns=who.turns,
        keep=Bounds(kept.max_count if kept.enabled else 0, kept.keep, kept.max_bytes),
        max_payload=settings.max_payload,
    )


def open_space(at: ConnectionSettings, title: str, patience: float) -> DatabaseSpace:
    link = Link(at.url or "", title=title, connect_timeout=patience, timeout=patience)
    return DatabaseSpace(link, JobRows(JobSql(link.server, at.table), at.table), prefix=at.prefix)
