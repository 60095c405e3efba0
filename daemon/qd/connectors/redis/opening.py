"""How the manager opens queues and keyspaces on Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.keyspace.queue import bounds_of
from qd.connectors.redis.queue import RedisQueue
from qd.connectors.redis.wire import Wire

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.cluster.keyspace import ClusterKeyspace
    from qd.connectors.cluster.queue import ClusterQueue
    from qd.connectors.reserver import Reserver


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> RedisQueue | ClusterQueue:
    queue = kind_of(at.url)(at, who, keep=bounds_of(settings.failed), max_payload=settings.max_payload)
    queue.patience(who.patience, who.patience)
    return queue


def kind_of(url: str | None) -> type[RedisQueue] | type[ClusterQueue]:
    if not is_cluster(url):
        return RedisQueue
    from qd.connectors.cluster.queue import ClusterQueue

    return ClusterQueue


def open_space(at: ConnectionSettings, title: str, patience: float) -> Wire | ClusterKeyspace:
    return opened(at.url or "", at.prefix, name=title, patience=patience)


def opened(url: str, prefix: str = "", *, name: str = "", patience: float = 5.0) -> Wire | ClusterKeyspace:
    """A keyspace on the Redis at `url`, whatever kind it is. prefix: what all names begin with. patience: seconds to
    connect, and for each reply."""
    if is_cluster(url):
        from qd.connectors.cluster.keyspace import ClusterKeyspace

        return ClusterKeyspace(url, prefix, name=name, connect_timeout=patience, timeout=patience)
    return Wire(url, name=name, connect_timeout=patience, timeout=patience)


def is_cluster(url: str | None) -> bool:
    return (url or "").partition(":")[0].endswith("+cluster")
