"""The url of a cluster, taken apart."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from qd.connectors.redis.target import Target
from qd.errors import ConfigError

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
PORT = 6379


class Seeds(NamedTuple):
    """A cluster's url, taken apart: some of its servers, as `host:port`, and how each of them is reached."""

    places: tuple[str, ...]
    before: str  # the scheme, user and password
    behind: str  # the options

    def url(self, place: str) -> str:
        return f"{self.before}{place}{self.behind}"


def seeds_of(url: str) -> Seeds:
    """Raises ConfigError naming what is wrong in it."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown kind of url '{scheme}:' of a cluster (known: {', '.join(SCHEMES)})")
    netloc, query, options = rest.partition("?")
    netloc, _, path = netloc.partition("/")
    if path.strip("/") not in ("", "0"):
        raise ConfigError(f"a cluster has database 0 only: take /{path} out of the url")
    user, at, hosts = netloc.rpartition("@")
    places = tuple(with_port(part.strip()) for part in hosts.split(",") if part.strip())
    if not places:
        raise ConfigError("the url of a cluster names no server (written redis+cluster://host:6379,host:6379)")
    found = Seeds(places, f"{SCHEMES[scheme]}://{user}{at}", f"{query}{options}")
    for place in places:
        if Target(found.url(place)).db:
            raise ConfigError("a cluster has database 0 only: take db= out of the url")
    return found


def with_port(place: str) -> str:
    try:
        parts = urlsplit(f"//{place}")
        return place if parts.port else f"{place.rstrip(':')}:{PORT}"
    except ValueError as error:
        raise ConfigError(f"'{place}' in the url of a cluster is not host:port ({error})") from None
