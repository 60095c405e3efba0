"""Whether the url of a Redis, of sentinels or of a cluster can be used. Nothing is connected, and redis-py is not loaded."""

from __future__ import annotations

from qd.connectors.cluster.seeds import SCHEMES, seeds_of
from qd.connectors.redis import credentials
from qd.connectors.redis.sentinels import target_of
from qd.connectors.redis.target import Target


def check(url: str) -> None:
    """Raises ConfigError naming what is wrong in it."""
    parsed(url)


def check_provider(url: str) -> None:
    """Raises ConfigError: its credential provider cannot be imported. The provider is not asked."""
    provider = parsed(url).login.provider
    if provider:
        credentials.check(provider)


def parsed(url: str) -> Target:
    """Of a cluster its first server."""
    if url.partition(":")[0] in SCHEMES:
        seeds = seeds_of(url)
        return Target(seeds.url(seeds.places[0]))
    return target_of(url)
