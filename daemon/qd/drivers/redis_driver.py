"""Opens queues and keyspaces on Redis or Valkey (see the table in options/drivers.py), and checks their URLs.

Nothing here connects or loads redis-py. It is not in redis/, because it also opens clusters, which build on redis/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.drivers.keyspace.queue import bounds_of
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.redis.sentinel import target_of
from qd.drivers.redis.url import SCHEMES, RedisUrl, seeds_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import ClientIdentity
    from qd.drivers.cluster.keyspace import ClusterKeyspace
    from qd.drivers.cluster.queue import ClusterQueue
    from qd.drivers.redis.aio import AsyncQueue


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> RedisQueue | ClusterQueue:
    kind: type[RedisQueue] | type[ClusterQueue] = RedisQueue
    if is_cluster(at.url):
        from qd.drivers.cluster.queue import ClusterQueue

        kind = ClusterQueue
    queue = kind(at, who, keep=bounds_of(settings.failed), max_payload=settings.max_payload)
    queue.patience(who.patience, who.patience)
    return queue


def open_native(at: ConnectionSettings, who: ClientIdentity) -> AsyncQueue | None:
    if is_cluster(at.url):
        return None
    from qd.drivers.redis.aio import AsyncQueue

    return AsyncQueue(at, who.title, who.patience)


def open_space(at: ConnectionSettings, title: str, patience: float) -> RedisConnection | ClusterKeyspace:
    return opened(at.url or "", at.prefix, name=title, patience=patience)


def opened(url: str, prefix: str = "", *, name: str = "", patience: float = 5.0) -> RedisConnection | ClusterKeyspace:
    """A keyspace on the server, primary or cluster at `url`. prefix: of all names. patience: seconds to connect, and for
    each reply."""
    if is_cluster(url):
        from qd.drivers.cluster.keyspace import ClusterKeyspace

        return ClusterKeyspace(url, prefix, name=name, connect_timeout=patience, timeout=patience)
    return RedisConnection(url, name=name, connect_timeout=patience, timeout=patience)


def is_cluster(url: str | None) -> bool:
    return (url or "").partition(":")[0].endswith("+cluster")


def parsed(url: str) -> RedisUrl:
    """For a cluster, the URL of its first server. Raises ConfigError."""
    if url.partition(":")[0] in SCHEMES:
        seeds = seeds_of(url)
        return RedisUrl(seeds.url(seeds.places[0]))
    return target_of(url)
