"""How the manager opens queues and keyspaces on Redis or Valkey.

Whether the url of a Redis, of sentinels or of a cluster can be used. Nothing is connected, and redis-py is not loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.drivers.cluster.nodes import SCHEMES, seeds_of
from qd.drivers.keyspace.queue import bounds_of
from qd.drivers.redis import credentials
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.redis.sentinel import target_of
from qd.drivers.redis.url import RedisUrl

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import ClientIdentity
    from qd.drivers.cluster.keyspace import ClusterKeyspace
    from qd.drivers.cluster.queue import ClusterQueue


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> RedisQueue | ClusterQueue:
    queue = kind_of(at.url)(at, who, keep=bounds_of(settings.failed), max_payload=settings.max_payload)
    queue.patience(who.patience, who.patience)
    return queue


def kind_of(url: str | None) -> type[RedisQueue] | type[ClusterQueue]:
    if not is_cluster(url):
        return RedisQueue
    from qd.drivers.cluster.queue import ClusterQueue

    return ClusterQueue


def open_space(at: ConnectionSettings, title: str, patience: float) -> RedisConnection | ClusterKeyspace:
    return opened(at.url or "", at.prefix, name=title, patience=patience)


def opened(url: str, prefix: str = "", *, name: str = "", patience: float = 5.0) -> RedisConnection | ClusterKeyspace:
    """A keyspace on the Redis at `url`, whatever kind it is. prefix: what all names begin with. patience: seconds to
    connect, and for each reply."""
    if is_cluster(url):
        from qd.drivers.cluster.keyspace import ClusterKeyspace

        return ClusterKeyspace(url, prefix, name=name, connect_timeout=patience, timeout=patience)
    return RedisConnection(url, name=name, connect_timeout=patience, timeout=patience)


def is_cluster(url: str | None) -> bool:
    return (url or "").partition(":")[0].endswith("+cluster")


def check(url: str) -> None:
    """Raises ConfigError naming what is wrong in it."""
    parsed(url)


def check_provider(url: str) -> None:
    """Raises ConfigError: its credential provider cannot be imported. The provider is not asked."""
    provider = parsed(url).login.provider
    if provider:
        credentials.check(provider)


def parsed(url: str) -> RedisUrl:
    """Of a cluster its first server."""
    if url.partition(":")[0] in SCHEMES:
        seeds = seeds_of(url)
        return RedisUrl(seeds.url(seeds.places[0]))
    return target_of(url)
