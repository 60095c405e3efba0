"""One HTTP connection to a server of SQS, kept open from call to call. `service` sends what boto3 has signed through it.

Ours, because a worker that waits for a job must hear a signal at once: a descriptor is polled beside the socket, and every
wait is bounded. Nothing is ever sent twice.
"""

from __future__ import annotations

import io
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from qd.connectors.patience import Patience
from qd.errors import ConnectionLost, Unreachable
from qd.process.descriptors import Identity, identity, ready_of

NAMED = 60.0  # seconds that finding the address of a name may take
IDLE = 20.0  # seconds after which an unused connection is not trusted any more


class Woken(Exception):
    """The descriptor that may end a wait was readable before the answer came."""


class Answered(io.RawIOBase):
    """What a socket sends, read by http.client: each read waits until the deadline at most, and is ended by `wake`."""

    def __init__(self, sock: Any, read: Callable[[Any, Any], int]) -> None:
        self._sock, self._read = sock, read
        self._open = sock.makefile("rb", 0)  # http.client lets go of a socket before it has read all that comes from it

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._read(self._sock, buffer)

    def close(self) -> None:
        self._open.close()
        super().close()


class Line(Patience):
    """timeout: seconds until an answer begins, beyond what the server was asked to wait, and then until it is whole."""

    def __init__(self, *, connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self._ca: str | None = None
        self._at: tuple[str, str] = ("", "")  # scheme, host with its port
        self._http: HTTPConnection | None = None
        self._file: Identity | None = None  # the socket's: a job may close it, and its number be another file's then
        self._used = self._deadline = 0.0
        self._wake = -1

    def trust(self, ca: str | None) -> None:
        """A file with certificates to check servers with, beside those of the system."""
        self._ca = ca

    def exchange(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float, wake: int
    ) -> tuple[int, dict[str, str], bytes]:
        """POST, and the answer: status, headers, body. seconds: how long the server was asked to wait. Raises Woken;
        Unreachable where nothing was sent; ConnectionLost where nobody knows what became of it."""
        http = self._connected(url)
        parts = urlsplit(url)
        try:
            http.sock.settimeout(self.timeout)
            http.request("POST", parts.path or "/", body, dict(headers))
            http.sock.settimeout(0)
            self._deadline, self._wake = time.monotonic() + seconds + self.timeout, wake
            answer = http.getresponse()
            self._deadline, self._wake = time.monotonic() + self.timeout, -1  # it has begun: a moment and it is whole
            text = answer.read()
        except (OSError, HTTPException, ssl.SSLError) as error:
            self.close()
            self._lives()
            raise ConnectionLost(f"the connection to SQS at {parts.netloc} broke: {reason(error)}") from None
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()
        if answer.will_close:
            self.close()
        self._lives()
        return answer.status, dict(answer.headers), text

    def _lives(self) -> None:
        """Whoever gave up an answer is alive, too: several calls one after the other may do so."""
        if self.about is not None:
            self.about(0.0)

    def _read(self, sock: Any, buffer: Any) -> int:
        while True:
            try:
                count: int = sock.recv_into(buffer)
                return count
            except (BlockingIOError, ssl.SSLWantReadError):
                came = ready_of([sock.fileno(), self._wake], self._deadline - time.monotonic())
            if not came:
                raise TimeoutError
            if came == [self._wake]:
                raise Woken

    # -- the connection

    def _connected(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        at = (parts.scheme, parts.netloc)
        if self._http is not None and (at != self._at or self._is_stale()):
            self.close()
        if self._http is None:
            self._http, self._at = self._opened(*at, parts.hostname or ""), at
        return self._http

    def _is_stale(self) -> bool:
        """One that is readable was closed by the server; after a while the way there may be gone, too."""
        sock = self._http.sock if self._http is not None else None
        if sock is None or identity(sock.fileno()) != self._file or time.monotonic() - self._used > IDLE:
            return True
        return bool(ready_of([sock.fileno()], 0))

    def _opened(self, scheme: str, netloc: str, host: str) -> HTTPConnection:
        if self.about is not None:
            self.about(NAMED)
        http = self._http_to(scheme, netloc, host)
        made: Any = self._answer
        http.response_class = made
        try:
            http.connect()
        except (OSError, HTTPException, ssl.SSLError) as error:
            http.close()
            raise Unreachable(f"SQS at {netloc} does not answer: {reason(error)}") from None
        self._file = identity(http.sock.fileno())
        return http

    def _http_to(self, scheme: str, netloc: str, host: str) -> HTTPConnection:
        """Straight there, or with TLS through the proxy that the environment names."""
        if scheme != "https":
            return HTTPConnection(netloc, timeout=self.connect_timeout)
        named = "" if proxy_bypass(host) else getproxies().get(scheme, "")
        if not named:
            return HTTPSConnection(netloc, timeout=self.connect_timeout, context=self._context())
        proxy = urlsplit(named if "//" in named else f"//{named}")
        at, port = proxy.hostname or "", proxy.port or 80
        http = HTTPSConnection(at, port, timeout=self.connect_timeout, context=self._context())
        http.set_tunnel(netloc, headers=authorization(proxy.username, proxy.password))
        return http

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca:
            context.load_verify_locations(self._ca)
        return context

    def _answer(self, sock: Any, *args: Any, **kwargs: Any) -> HTTPResponse:
        stand_in: Any = Answered(sock, self._read)
        return HTTPResponse(stand_in, *args, **kwargs)

    def close(self) -> None:
        """Hang up. What a server answers then is lost: see SqsQueue.wait."""
        http, self._http = self._http, None
        if http is None or http.sock is None:
            return
        if identity(http.sock.fileno()) == self._file:
            http.close()
        else:
            http.sock.detach()
            http.sock = None


def authorization(user: str | None, password: str | None) -> dict[str, str]:
    if not user:
        return {}
    told = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(told).decode()}"}


def reason(why: object) -> str:
    if isinstance(why, TimeoutError):
        return "no answer in time"
    return (getattr(why, "strerror", None) or str(why) or type(why).__name__).lower()
