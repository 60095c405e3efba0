"""The url of a Redis or Valkey server, taken apart, and a socket to it. `wire` asks here.

redis://[user:password@]host[:port][/db], rediss://..., unix://[user:password@]/path?db=N.
Options behind `?`: db, ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_cert_reqs (required | none).
redis+sentinel:// is read in sentinels.py.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from qd.errors import ConfigError, Unreachable, Unusable
from qd.units import did_you_mean

OPTIONS = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
KINDS = ("redis", "rediss", "unix")


class Target:
    """A url taken apart once. Raises ConfigError naming what is wrong in it."""

    must_be_primary = False  # True: whoever says by ROLE that it is none is not worked with

    def __init__(self, url: str) -> None:
        parts = parted(url, KINDS)
        query = options_of(parts, OPTIONS)
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password else None
        self.path = unquote(parts.path) if parts.scheme == "unix" else None
        if self.path == "":
            raise ConfigError("a unix:// url names the server's socket: unix:///run/redis/redis.sock")
        try:
            self.host, self.port = parts.hostname or "localhost", parts.port or 6379
            self.db = int(query.get("db") or ("" if self.path else parts.path.strip("/")) or 0)
        except ValueError as error:
            raise ConfigError(f"a Redis url needs a number as port and as database ({error})") from None
        self.tls = tls_context(query) if parts.scheme == "rediss" else None

    @property
    def place(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}/{self.db}"

    def socket(self, timeout: float) -> socket.socket:
        if self.path:
            return unix_socket(self.path, timeout)
        return tcp_socket((self.host, self.port), timeout, self.tls)

    def doubted(self) -> None:
        """The server that was found cannot be worked with."""

    def replaced(self, timeout: float) -> str:
        """Why another server than the one that was found is the one to work with; "": it is that one."""
        return ""


def parted(url: str, kinds: Sequence[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:  # half of an IPv6 address
        raise ConfigError(f"not a Redis url ({error})") from None
    if parts.scheme not in kinds:
        raise ConfigError(f"unknown kind of url '{parts.scheme}:' (known: redis://, rediss://, unix://, embedded:)")
    return parts


def options_of(parts: SplitResult, known: Sequence[str]) -> dict[str, str]:
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    for option in query:
        if option not in known:
            near = did_you_mean(option, known)
            raise ConfigError(f"unknown option '{option}' in a Redis url (known: {', '.join(known)}){near}")
    return query


def unix_socket(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def tcp_socket(address: tuple[str, int], timeout: float, tls: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection(address, timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return tls.wrap_socket(sock, server_hostname=address[0]) if tls else sock


def tls_context(query: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=query.get("ssl_ca_certs"))
        if query.get("ssl_certfile"):
            context.load_cert_chain(query["ssl_certfile"], query.get("ssl_keyfile"))
    except OSError as error:  # an SSLError is one
        named = ", ".join(f"{key}={query[key]}" for key in OPTIONS[1:4] if key in query)
        raise ConfigError(f"the certificates of a Redis url cannot be read ({named}): {reason(error)}") from None
    checks = query.get("ssl_cert_reqs", "required")
    if checks not in ("required", "none"):
        raise ConfigError(f"ssl_cert_reqs={checks} in a Redis url is none of required, none")
    if checks == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def unreached(why: Exception) -> type[Unreachable]:
    """A certificate that is refused is for somebody to mend; everything else may be over in a moment."""
    return Unusable if isinstance(why, ssl.SSLCertVerificationError) else Unreachable


def reason(why: object) -> str:
    if isinstance(why, TimeoutError):
        return "no answer to TLS in time: has this port TLS?" if "handshake" in str(why) else "no answer in time"
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {why.verify_message} (ssl_ca_certs names who signs it, the url its host)"
    if isinstance(why, ssl.SSLError) and (isinstance(why, ssl.SSLEOFError) or "CERTIFICATE_REQUIRED" in str(why)):
        return "it has ended TLS: where it wants a client's certificate, name ssl_certfile and ssl_keyfile"
    return (getattr(why, "strerror", None) or str(why) or type(why).__name__).lower()
