"""How the manager opens keyspaces in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.database.keyspace import DatabaseSpace
from qd.connectors.database.link import Link

if TYPE_CHECKING:
    from qd.config import ConnectionSettings


def open_space(at: ConnectionSettings, title: str, patience: float) -> DatabaseSpace:
    return DatabaseSpace(Link(at.url or "", title=title, connect_timeout=patience, timeout=patience), prefix=at.prefix)
