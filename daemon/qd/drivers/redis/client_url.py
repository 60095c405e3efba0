"""Qd(redis=client): convert the connection parameters of a redis-py client to a URL.

copied      address, database, user, password, credential provider, TLS; the servers of Sentinel or of the cluster
ignored     pool, retries, timeouts, decoding, name and protocol: qd opens its own connections with its own values
refused     options that qd does not support, by name: qd's connections must not be less secure than the client's
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import redis
from redis.connection import Connection, SSLConnection

from qd.drivers.redis import credentials
from qd.drivers.redis.url import TLS_OPTIONS, host_port
from qd.errors import ConfigError

REFUSED = (
    "ssl_ca_data", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_include_verify_flags", "ssl_exclude_verify_flags",
)  # fmt: skip
TAKEN = "takes a client of redis-py: Redis(...), Sentinel(...).master_for(...) or RedisCluster(...)"
Parameters = Mapping[str, Any]


def url_of(client: Any) -> str:
    """Does not connect. Raises ConfigError: not a client of redis-py, or one with parameters that qd does not support."""
    if any(base.__module__.startswith("redis.asyncio") for base in type(client).__mro__):
        raise ConfigError(f"Qd(redis=...) {TAKEN}; this one is of redis.asyncio: qd connects without an event loop")
    if isinstance(client, redis.RedisCluster):
        return _of_cluster(client)
    if not isinstance(client, redis.Redis):
        raise ConfigError(f"Qd(redis=...) {TAKEN}; this is an object of type {type(client).__name__}")
    pool = client.connection_pool
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return _of_sentinel(pool)
    kind, given = pool.connection_class, pool.connection_kwargs
    _check_class(kind)
    if given.get("redis_connect_func") is not None:
        raise ConfigError("Qd(redis=...): qd cannot call redis_connect_func: use a credential_provider")
    if issubclass(kind, redis.UnixDomainSocketConnection):
        return _url("unix", given, quote(given.get("path", "")), {"db": given.get("db") or 0})
    host = host_port(given.get("host") or "localhost", given.get("port") or 6379)
    scheme = "rediss" if issubclass(kind, redis.SSLConnection) else "redis"
    return _url(scheme, given, f"{host}/{given.get('db') or 0}", _tls(kind, given))


def _of_sentinel(pool: Any) -> str:
    if not pool.is_master:
        raise ConfigError("Qd(redis=...): slave_for() gives a replica, and queues need the primary: use master_for()")
    kind, given = pool.connection_class, pool.connection_kwargs
    _check_class(kind)
    pools = [each.connection_pool for each in pool.sentinel_manager.sentinels]
    if not pools:
        raise ConfigError("Qd(redis=...): this Sentinel names no sentinels")
    theirs, tls = pools[0].connection_kwargs, _tls(kind, given)
    is_tls, are_tls = issubclass(kind, SSLConnection), issubclass(pools[0].connection_class, SSLConnection)
    sentinel_tls = _tls(pools[0].connection_class, theirs)
    if theirs.get("credential_provider") is not None:
        raise ConfigError("Qd(redis=...): qd supports a user and password for sentinels, not a credential_provider")
    if is_tls and are_tls and tls != sentinel_tls:
        why = "the TLS options of servers and sentinels differ, and qd uses one set for both"
        raise ConfigError(f"Qd(redis=...): {why}")
    options = {
        "sentinel_username": theirs.get("username"),
        "sentinel_password": _text(theirs.get("password"), "password"),
        "sentinel_ssl": None if is_tls == are_tls else str(are_tls).lower(),
        **(tls or sentinel_tls),
    }
    hosts = ",".join(host_port(each.connection_kwargs["host"], each.connection_kwargs["port"]) for each in pools)
    scheme = "rediss+sentinel" if is_tls else "redis+sentinel"
    place = f"{hosts}/{quote(pool.service_name, safe='')}/{given.get('db') or 0}"
    return _url(scheme, given, place, options)


def _of_cluster(client: Any) -> str:
    nodes = client.nodes_manager
    given = nodes.connection_kwargs
    kind = given.get("connection_class") or (SSLConnection if given.get("ssl") else Connection)
    _check_class(kind)
    hosts = ",".join(host_port(node.host, node.port) for node in nodes.startup_nodes.values())
    scheme = "rediss+cluster" if issubclass(kind, SSLConnection) else "redis+cluster"
    return _url(scheme, given, hosts, _tls(kind, given))


def _check_class(kind: type) -> None:
    if not kind.__module__.startswith("redis."):
        what = f"{kind.__name__}, a connection class of {kind.__module__}"
        raise ConfigError(f"Qd(redis=...): qd does not support {what}")


def _url(scheme: str, given: Parameters, place: str, options: Mapping[str, Any]) -> str:
    user, password = _text(given.get("username"), "username"), _text(given.get("password"), "password")
    query = dict(options)
    if (provider := given.get("credential_provider")) is not None:
        query["credentials"] = credentials.add(provider)
        user = password = ""
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    written = urlencode({key: value for key, value in query.items() if value not in (None, "")})
    return f"{scheme}://{login}{'@' if login else ''}{place}{'?' if written else ''}{written}"


def _text(value: object, what: str) -> str:
    """redis-py also accepts bytes and numbers. The error does not show the value."""
    try:
        text = value.decode() if isinstance(value, bytes) else "" if value is None else str(value)
        text.encode()
    except UnicodeError:
        raise ConfigError(f"Qd(redis=...): the {what} of the client is not UTF-8") from None
    return text


def _tls(kind: type, given: Parameters) -> dict[str, Any]:
    """The TLS options that differ from redis-py's defaults. Raises ConfigError for unsupported ones."""
    if not issubclass(kind, SSLConnection):
        return {}
    if refused := ", ".join(name for name in REFUSED if given.get(name)):
        raise ConfigError(f"Qd(redis=...): qd does not support {refused} of this client")
    made = SSLConnection(**{key: value for key, value in given.items() if key.startswith("ssl_")})  # applies defaults
    checked = "none" if made.cert_reqs == 0 else None
    options = {name: given.get(name) for name in TLS_OPTIONS} | {"ssl_cert_reqs": checked}
    options["ssl_check_hostname"] = None if made.check_hostname or checked else "false"
    options["ssl_password"] = _text(given.get("ssl_password"), "ssl_password")
    if (version := given.get("ssl_min_version")) is not None:
        options["ssl_min_version"] = int(version)
    return {name: value for name, value in options.items() if value not in (None, "")}
