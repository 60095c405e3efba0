"""Connections of redis-py, as qd opens them.

redis-py finds the address, opens the socket (TCP, TLS, unix) and closes it. Everything after that is qd's (wire.py): the
greeting in one round trip, the reader, and the waits that a signal ends. So redis-py repeats nothing here: no retry, no
health check, no handshake of its own. Whoever imports this file loads all of redis-py, about 0.2 s and 8 MB. So it is
imported when a process makes its first connection; the master of `qd work` imports it before it forks (daemon.py).
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - the first name to be resolved imports it
import socket
import ssl
from importlib.util import find_spec
from typing import Any, Protocol

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError
from redis.retry import Retry

# For a handshake that qd does not send, redis-py would otherwise read the metadata of its package for every connection:
# 2 ms, and 2 MB of each forked process. Older versions read them once and do not know this argument.
NO_DRIVER_INFO: dict[str, Any] = {"driver_info": None} if find_spec("redis.driver_info") else {}


class Opened(Protocol):
    """What qd uses of a connection of redis-py that is open."""

    _sock: Any

    def disconnect(self) -> None: ...


class TlsConnection(SSLConnection):
    """With a context that was made once, when the URL was read: it trusts the named authority and no other."""

    def __init__(self, context: ssl.SSLContext, **where: Any) -> None:
        super().__init__(**where)
        self._context = context

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(sock, server_hostname=self.host)


def tcp(host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> Opened:
    """timeout: seconds to connect, and for each step of the TLS handshake. Raises OSError."""
    where = {"host": host, "port": port}
    return _connected(TlsConnection, timeout, context=tls, **where) if tls else _connected(Connection, timeout, **where)


def unix(path: str, timeout: float) -> Opened:
    """Raises OSError."""
    return _connected(UnixDomainSocketConnection, timeout, path=path)


def _no_handshake(connection: object) -> None:
    """wire.py greets the server itself, in one round trip."""


def _connected(kind: Any, timeout: float, **where: Any) -> Opened:
    connection = kind(
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
        redis_connect_func=_no_handshake,
        **NO_DRIVER_INFO,
        **where,
    )
    try:
        connection.connect()
    except (RedisError, AttributeError) as error:
        cause = (
            error.__context__
        )  # redis-py turns the error of the socket into a text of its own, and may stumble over it
        connection.disconnect()
        if isinstance(cause, OSError):
            raise cause from None
        raise OSError(str(error)) from error
    opened: Opened = connection
    return opened
