"""One connection to a Redis or Valkey server: TCP, TLS or a unix socket, with ACL user, database and name.

Small on purpose, and ours, because a queue's promises hang on it: no call is ever repeated behind the caller's back,
every wait is bounded, and a wait for a job ends at once when a signal writes to the mailbox. The parsing of replies is
hiredis's. Forks and threads do not share a Wire.

url: redis://[user:password@]host[:port][/db], rediss://..., unix://[user:password@]/path?db=N.
Options behind `?`: db, ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_cert_reqs (required | none).
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from qd.errors import ConfigError, ConnectionLost, ServerBusy, ServerRefused, WrongPassword

Arg = bytes | str | int | float
BUSY = (
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "MISCONF",
    "BUSY",
    "OOM",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "UNBLOCKED",
)
PASSWORD = ("NOAUTH", "WRONGPASS", "NOPERM")


def packed_items(args: Sequence[Arg]) -> bytes:
    """Arguments as the protocol sends them, each a bulk string."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in args]
    return b"".join([b"$%d\r\n%b\r\n" % (len(p), p) for p in parts])


def packed(args: Sequence[Arg]) -> bytes:
    """A whole command: an array of bulk strings."""
    return b"*%d\r\n" % len(args) + packed_items(args)


class Target:
    """A url taken apart once. Raises ConfigError naming what is wrong in it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ConfigError(f"unknown kind of url '{parts.scheme}:' (known: redis://, rediss://, unix://, embedded:)")
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password else None
        self.path = unquote(parts.path) if parts.scheme == "unix" else None
        try:
            self.host, self.port = parts.hostname or "localhost", parts.port or 6379
            self.db = int(query.get("db") or ("" if self.path else parts.path.strip("/")) or 0)
        except ValueError as error:
            raise ConfigError(f"a Redis url needs a number as port and as database ({error})") from None
        self.tls = tls_context(query) if parts.scheme == "rediss" else None
        self.place = f"unix:{self.path}" if self.path else f"{self.host}:{self.port}/{self.db}"

    def socket(self, timeout: float) -> socket.socket:
        if self.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout)
            try:
                sock.connect(self.path)
            except BaseException:
                sock.close()
                raise
            return sock
        sock = socket.create_connection((self.host, self.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.tls.wrap_socket(sock, server_hostname=self.host) if self.tls else sock


def tls_context(query: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=query.get("ssl_ca_certs"))
    if query.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if query.get("ssl_certfile"):
        context.load_cert_chain(query["ssl_certfile"], query.get("ssl_keyfile"))
    return context


class Wire:
    """Connects on first use. After ConnectionLost it is closed, and the next call connects anew.

    timeout: seconds any reply may take; connect_timeout: seconds a connection may take. Both are always finite.
    on_connect: called with the fresh wire (to register scripts, or the worker behind it).
    """

    def __init__(self, url: str, *, name: str = "", connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.target = Target(url)
        self.name = name
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self._sock: socket.socket | None = None
        self._reader: Any = None
        self._used = 0.0

    @property
    def connected(self) -> bool:
        return self._sock is not None

    def connect(self) -> None:
        """Open and greet. Raises ConnectionLost, ServerBusy or WrongPassword."""
        self.close()
        try:
            self._sock = self.target.socket(self.connect_timeout)
            self._sock.settimeout(self.timeout)
        except (OSError, ssl.SSLError) as error:
            self.close()
            raise ConnectionLost(f"Redis at {self.target.place} does not answer: {reason(error)}") from None
        self._reader = hiredis.Reader()
        greeting = self._greeting()
        try:
            for command, reply in zip(greeting, self.call_many(greeting) if greeting else [], strict=True):
                if isinstance(reply, Exception) and command[0] != "CLIENT":  # a name is a comfort, an ACL may refuse it
                    raise reply
        except BaseException:
            self.close()
            raise

    def _greeting(self) -> list[tuple[Arg, ...]]:
        target, commands = self.target, list[tuple[Arg, ...]]()
        if target.password is not None:
            commands.append(("AUTH", target.user, target.password) if target.user else ("AUTH", target.password))
        if target.db:
            commands.append(("SELECT", target.db))
        if self.name:
            commands.append(("CLIENT", "SETNAME", self.name))
        return commands

    def call(self, *args: Arg) -> Any:
        """One command, one reply."""
        self.send(packed(args))
        return self.receive()

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """A pipeline. Errors of single commands stand in the list as exceptions; raises ConnectionLost only."""
        self.send(b"".join([packed(c) for c in commands]))
        return [self._reply() for _ in commands]

    def send(self, command: bytes) -> None:
        """Send packed bytes, on a fresh connection when there is none or when an idle one was closed by the server."""
        if self._sock is None or (time.monotonic() - self._used > 1.0 and self._went_away()):
            self.connect()
        assert self._sock is not None
        try:
            self._sock.sendall(command)
        except (OSError, ssl.SSLError) as error:
            self.lost(error)

    def receive(self) -> Any:
        """The next reply. Raises what the server answered as ServerBusy, WrongPassword or ServerRefused."""
        reply = self._reply()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _reply(self) -> Any:
        reader, sock = self._reader, self._sock
        try:
            reply = reader.gets()
            while reply is False:
                data = sock.recv(65536) if sock is not None else b""
                if not data:
                    self.lost("the server closed the connection")
                reader.feed(data)
                reply = reader.gets()
        except (OSError, ssl.SSLError, hiredis.ProtocolError) as error:
            self.lost(error)
        self._used = time.monotonic()
        return classified(str(reply)) if isinstance(reply, hiredis.ReplyError) else reply

    def readable(self, seconds: float, wake: int) -> bool:
        """Wait for the first byte of a reply, at most `seconds`, ended at once by the descriptor `wake`."""
        sock = self._sock
        if sock is None:
            return False
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return True
        poll = select.poll()  # not select(): a job may have left more than 1,024 descriptors open
        poll.register(sock, select.POLLIN)
        if wake >= 0:
            poll.register(wake, select.POLLIN)
        return sock.fileno() in [fd for fd, _ in poll.poll(max(0, math.ceil(seconds * 1000)))]

    def _went_away(self) -> bool:
        """An idle connection that is readable was closed (or holds a reply nobody waits for): not to be used."""
        return self.readable(0, -1)

    def lost(self, why: object) -> None:
        self.close()
        raise ConnectionLost(f"the connection to Redis at {self.target.place} broke: {reason(why)}") from None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = self._reader = None


def classified(text: str) -> Exception:
    word = text.split(" ", 1)[0].rstrip(":")
    if word in PASSWORD:
        return WrongPassword(f"Redis refuses this user or password: {text}")
    if word in BUSY or "-OOM" in text or "OOM command not allowed" in text or "READONLY" in text or "MISCONF" in text:
        return ServerBusy(f"Redis cannot serve now: {text}")
    return ServerRefused(text)


def reason(why: object) -> str:
    if isinstance(why, TimeoutError):
        return "no answer in time"
    return (getattr(why, "strerror", None) or str(why) or type(why).__name__).lower()
