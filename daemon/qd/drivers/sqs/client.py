"""Calls to SQS: boto3 finds credentials, signs and reads the answers; what is sent goes through a `Line`, and only once.

boto3 is imported with this module, which is imported when a connection to SQS is used.

One HTTP connection to a server of SQS, kept open from call to call. `service` sends what boto3 has signed through it.

Ours, because a worker that waits for a job must hear a signal at once: a descriptor is polled beside the socket, and every
wait is bounded. Nothing is ever sent twice.
"""

from __future__ import annotations

import io
import json
import logging
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import boto3
import botocore.exceptions as refusals
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.httpsession import get_cert_path

from qd.drivers.base import Patience
from qd.drivers.urls import SqsUrl
from qd.errors import (
    ConfigError,
    ConnectionLost,
    NeedsMending,
    QdError,
    ServerBusy,
    ServerRefused,
    Unreachable,
    WrongPassword,
)
from qd.process.descriptors import Identity, identity, ready_of
from qd.redaction import register_secrets

BUSY = ("Throttl", "OverLimit", "RequestLimitExceeded", "ServiceUnavailable", "InternalError", "InternalFailure")
DENIED = (
    "AccessDenied", "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidSecurity",
    "UnrecognizedClient", "MissingAuthenticationToken", "IncompleteSignature", "NotAuthorized", "OptInRequired",
    "InvalidToken", "KmsAccessDenied",
)  # fmt: skip
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
UNKNOWN = ("QueueDoesNotExist", "NonExistentQueue")
SHOWN = 200  # characters of a page that is no answer of SQS
WRONG_PLACE = "does the url name another program's port, or does a proxy ask for a login?"
WAYS = "give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, or the role of this machine"


class NoSuchQueue(NeedsMending, ServerRefused):
    """SQS knows no queue of that name, or hides it from this account."""


class Body(io.BytesIO):
    """What botocore reads an answer from."""

    def stream(self, *_: object) -> Iterator[bytes]:
        yield self.read()


class Service:
    """Belongs to one thread of one process. Raises ConfigError where boto3 cannot use what the environment says."""

    def __init__(self, address: SqsUrl) -> None:
        self.address, self.line = address, HttpConnection()
        self._seconds, self._wake = 0.0, -1
        self._client: Any = None

    def call(self, operation: str, *, seconds: float = 0.0, wake: int = -1, **asked: Any) -> dict[str, Any]:
        """One request, one answer. seconds: how long the server is asked to wait for it. Raises Woken where `wake` ended
        that; ConnectionLost, ServerBusy, WrongPassword, ServerRefused, NoSuchQueue."""
        self._seconds, self._wake = seconds, wake
        try:
            answer: dict[str, Any] = getattr(self.client, operation)(**asked)
            return answer
        except (QdError, Woken):
            raise
        except (refusals.BotoCoreError, refusals.ClientError) as error:
            raise self.classified(error) from None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self._made()
        return self._client

    def _made(self) -> Any:
        quiet = logging.getLogger("botocore.credentials")  # it tells each process where it found them
        quiet.setLevel(quiet.level or logging.WARNING)
        register_secrets([os.environ.get(name, "") for name in SECRETS])
        once = Config(retries={"total_max_attempts": 1, "mode": "standard"}, user_agent_extra="qd-worker")
        try:
            session = boto3.session.Session(region_name=self.address.region)
            client = session.client("sqs", endpoint_url=self.address.endpoint, config=once)
        except (refusals.BotoCoreError, ValueError) as error:
            raise ConfigError(f"boto3 cannot make a client for SQS in {self.address.region}: {error}") from None
        self.line.trust(os.environ.get("AWS_CA_BUNDLE") or get_cert_path(True))
        client.meta.events.register("before-send.sqs", self._send)
        return client

    def _send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        headers = {key: text_of(value) for key, value in request.headers.items()}
        body = request.body.encode() if isinstance(request.body, str) else bytes(request.body or b"")
        status, answered, text = self.line.exchange(request.url, headers, body, self._seconds, self._wake)
        if text.strip() and not is_object(text):
            if status == 200:  # which botocore would take for an answer
                raise ConnectionLost(f"the server at {self.address.place} answers what no SQS answers: {WRONG_PLACE}")
            text = object_with(text)
        return AWSResponse(request.url, status, answered, Body(text))

    def classified(self, error: Exception) -> Exception:
        """As ours. What it says holds no secret: botocore names the key at most, never what signs."""
        place = self.address.place
        if isinstance(
            error, refusals.NoCredentialsError | refusals.PartialCredentialsError | refusals.TokenRetrievalError
        ):
            return WrongPassword(f"no credentials for SQS at {place}: {WAYS}")
        if not isinstance(error, refusals.ClientError):
            return unclear(error, place)
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = f"{code}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": ")
        if any(word in code for word in UNKNOWN):
            return NoSuchQueue(f"SQS at {place} knows no such queue ({said})")
        if any(word in code for word in DENIED):
            return WrongPassword(f"SQS at {place} refuses these credentials: {said}")
        if status >= 500 or status == 429 or any(word in code for word in BUSY):
            return ServerBusy(f"SQS at {place} cannot serve now: {said or status}")
        return ServerRefused(said)

    def close(self) -> None:
        self.line.close()


def unclear(error: Exception, place: str) -> Exception:
    if isinstance(error, refusals.ParamValidationError):
        return ServerRefused(f"boto3 does not send this: {str(error).splitlines()[-1].strip()}")
    if isinstance(error, refusals.CredentialRetrievalError | refusals.UnauthorizedSSOTokenError):
        return WrongPassword(f"no credentials for SQS at {place}: {type(error).__name__}")
    return ConnectionLost(f"SQS at {place}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def is_object(text: bytes) -> bool:
    """As SQS answers: the text of a JSON object. Of anything else botocore raises whatever comes of it."""
    try:
        return text.decode().lstrip().startswith("{")
    except UnicodeDecodeError:
        return False


def object_with(page: bytes) -> bytes:
    """The page of a proxy, or of another program, as the message of an error."""
    said = " ".join(page.decode("utf-8", "replace").split())
    return json.dumps({"message": said[:SHOWN]}).encode()


def text_of(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


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


class HttpConnection(Patience):
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
