"""Connections of redis-py, as qd opens them.

redis-py resolves the address, opens the socket (TCP, TLS, unix) and closes it. connection.py does the rest: the greeting in
one round trip, reading, and waits that a signal ends. redis-py's retries and health checks are off by default; its handshake
is switched off here.

Importing this file loads all of redis-py (about 0.2 s and 8 MB), so a process imports it for its first connection. The
master of `qd work` imports it before it forks (daemon.py).
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - resolving the first host name imports it
import os
import socket
import ssl
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError

FAILURES = (RedisError, AttributeError)  # AttributeError: redis-py fails to format some socket errors
# Otherwise redis-py reads its package metadata for each connection, for a handshake that qd does not send: 2 ms, and 2 MB of
# each forked process. Older versions read it once and do not have this argument.
NO_DRIVER_INFO: dict[str, Any] = {"driver_info": None} if find_spec("redis.driver_info") else {}


class TlsConnection(SSLConnection):
    """Uses the context made when the URL was parsed. It trusts the named authority only; redis-py would add the system's."""

    def __init__(self, context: ssl.SSLContext, **where: Any) -> None:
        super().__init__(**where)
        self._context = context

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(sock, server_hostname=self.host)


KINDS = (Connection, TlsConnection, UnixDomainSocketConnection)


def opened(timeout: float, **where: Any) -> Any:
    """An open connection of redis-py. timeout: seconds to connect, and for each step of the TLS handshake. where: see
    unconnected. Raises OSError."""
    connection = unconnected(KINDS, timeout, **where)
    try:
        connection.connect()
    except FAILURES as error:
        connection.disconnect()
        raise os_error(error) from None
    return connection


def unconnected(
    kinds: Sequence[Any], timeout: float, *, host: str = "", port: int = 0, path: str | None = None, tls: object = None
) -> Any:
    """kinds: the classes for TCP, TLS and unix sockets. tls: an SSLContext."""
    tcp, secure, unix = kinds
    kind = unix if path else secure if tls else tcp
    where: dict[str, Any] = {"path": path} if path else {"host": host, "port": port}
    if kind is secure:
        where["context"] = tls
    # redis-py's default is no retry. It would deepcopy a `retry` argument, which costs each process 0.3 MB.
    times = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    # redis_connect_func: in place of redis-py's handshake; qd sends the greeting
    return kind(protocol=2, redis_connect_func=lambda _: None, **times, **NO_DRIVER_INFO, **where)


def os_error(error: BaseException) -> OSError:
    """The error of the socket, of redis-py's. asyncio's own text is replaced by the system's."""
    cause = error.__context__
    if not isinstance(cause, OSError):
        return OSError(str(error))
    return OSError(cause.errno, os.strerror(cause.errno or 0)) if "Connect call failed" in str(cause) else cause
