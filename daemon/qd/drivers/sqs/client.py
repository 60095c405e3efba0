"""Calls to SQS over one kept HTTP connection.

Service          boto3 finds the credentials, signs the request and reads the reply
HttpConnection   sends it: polls a wake descriptor next to the socket, so that a waiting worker reacts to a signal at once,
                 bounds every wait, and sends nothing twice

Importing this module imports boto3; only a connection to SQS that is used imports it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import boto3
import botocore.exceptions as refusals
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.httpsession import get_cert_path

from qd import errors
from qd.drivers.base import Patience
from qd.drivers.urls import SqsUrl
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
SHOWN = 200  # characters of a page that SQS did not write
WRONG_SERVER = "does the url name another program's port, or does a proxy ask for a login?"
WAYS = "give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, or the role of this machine"
RESOLVE = 60.0  # seconds that resolving a host name may take
IDLE = 20.0  # seconds after which an unused connection is not reused


class NoSuchQueue(errors.NeedsMending, errors.ServerRefused):
    """SQS has no queue of that name, or hides it from this account."""


class Woken(Exception):
    """The wake descriptor became readable before the reply came."""


class Body(io.BytesIO):
    """A reply for botocore to read."""

    def stream(self, *_: object) -> Iterator[bytes]:
        yield self.read()


class Service:
    """Belongs to one thread of one process. Raises ConfigError if boto3 cannot use the environment's settings."""

    def __init__(self, address: SqsUrl) -> None:
        self.address, self.http = address, HttpConnection()
        self._seconds, self._wake = 0.0, -1

    def call(self, operation: str, *, seconds: float = 0.0, wake: int = -1, **params: Any) -> dict[str, Any]:
        """One request, one reply. seconds: how long SQS may wait before it replies. Raises Woken if `wake` ended that wait;
        ConnectionLost, ServerBusy, WrongPassword, ServerRefused, NoSuchQueue."""
        self._seconds, self._wake = seconds, wake
        try:
            reply: dict[str, Any] = getattr(self.client, operation)(**params)
            return reply
        except (errors.QdError, Woken):
            raise
        except (refusals.BotoCoreError, refusals.ClientError) as error:
            raise self.classified(error) from None

    @cached_property
    def client(self) -> Any:
        quiet = logging.getLogger("botocore.credentials")  # each process would log where it found them
        quiet.setLevel(quiet.level or logging.WARNING)
        register_secrets([os.environ.get(name, "") for name in SECRETS])
        once = Config(retries={"total_max_attempts": 1, "mode": "standard"}, user_agent_extra="qd-worker")
        try:
            session = boto3.session.Session(region_name=self.address.region)
            client = session.client("sqs", endpoint_url=self.address.endpoint, config=once)
        except (refusals.BotoCoreError, ValueError) as error:
            raise errors.ConfigError(f"boto3 cannot make a client for SQS in {self.address.region}: {error}") from None
        self.http.ca = os.environ.get("AWS_CA_BUNDLE") or get_cert_path(True)
        client.meta.events.register("before-send.sqs", self._send)
        return client

    def _send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        pairs = request.headers.items()
        headers = {key: value.decode("latin-1") if isinstance(value, bytes) else value for key, value in pairs}
        body = request.body.encode() if isinstance(request.body, str) else bytes(request.body or b"")
        status, reply_headers, text = self.http.exchange(request.url, headers, body, self._seconds, self._wake)
        if text.strip() and not is_object(text):
            if status == 200:  # botocore would accept it as a reply
                raise errors.ConnectionLost(
                    f"the server at {self.address.place} does not answer like SQS: {WRONG_SERVER}"
                )
            page = " ".join(text.decode("utf-8", "replace").split())  # of a proxy, or of another program
            text = json.dumps({"message": page[:SHOWN]}).encode()
        return AWSResponse(request.url, status, reply_headers, Body(text))

    def classified(self, error: Exception) -> Exception:
        """The error as ours. Its text has no secret: botocore names the key id at most, never the key that signs."""
        place = self.address.place
        missing = refusals.NoCredentialsError | refusals.PartialCredentialsError | refusals.TokenRetrievalError
        if isinstance(error, missing):
            return errors.WrongPassword(f"no credentials for SQS at {place}: {WAYS}")
        if isinstance(error, refusals.ParamValidationError):
            return errors.ServerRefused(f"boto3 does not send this: {str(error).splitlines()[-1].strip()}")
        if isinstance(error, refusals.CredentialRetrievalError | refusals.UnauthorizedSSOTokenError):
            return errors.WrongPassword(f"no credentials for SQS at {place}: {type(error).__name__}")
        if not isinstance(error, refusals.ClientError):
            line = str(error).splitlines()[0] if str(error) else ""
            return errors.ConnectionLost(f"SQS at {place}: {type(error).__name__}: {line}")
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        text = f"{code}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": ")
        if has(code, UNKNOWN):
            return NoSuchQueue(f"SQS at {place} has no such queue ({text})")
        if has(code, DENIED):
            return errors.WrongPassword(f"SQS at {place} refuses these credentials: {text}")
        if status >= 500 or status == 429 or has(code, BUSY):
            return errors.ServerBusy(f"SQS at {place} cannot serve now: {text or status}")
        return errors.ServerRefused(text)

    def close(self) -> None:
        self.http.close()


def has(text: str, words: Sequence[str]) -> bool:
    return any(word in text for word in words)


def is_object(text: bytes) -> bool:
    """Whether it looks like a JSON object, as every reply of SQS does; for anything else botocore raises random errors."""
    try:
        return text.decode().lstrip().startswith("{")
    except UnicodeDecodeError:
        return False


class ReplyReader(io.RawIOBase):
    """The socket as http.client reads it: each read ends at the deadline, or when `wake` is readable."""

    def __init__(self, sock: Any, read: Callable[[Any, Any], int]) -> None:
        self._sock, self._read = sock, read
        self._open = sock.makefile("rb", 0)  # http.client closes a socket before it has read all of it

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
    """timeout: seconds until a reply begins, beyond the wait that was requested, and again until it is complete."""

    def __init__(self, *, connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self.ca: str | None = None  # a file with certificates to trust in addition to the system's
        self._at: tuple[str, str] = ("", "")  # scheme, host with its port
        self._http: HTTPConnection | None = None
        self._file: Identity | None = None  # of the socket, to detect that a job has closed it
        self._used = self._deadline = 0.0
        self._wake = -1

    def exchange(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float, wake: int
    ) -> tuple[int, dict[str, str], bytes]:
        """POST. Returns status, headers and body of the reply. seconds: the requested wait. Raises Woken; Unreachable if
        nothing was sent; ConnectionLost if SQS may or may not have executed the call."""
        http = self._connected(url)
        parts = urlsplit(url)
        try:
            http.sock.settimeout(self.timeout)
            http.request("POST", parts.path or "/", body, dict(headers))
            http.sock.settimeout(0)
            self._deadline, self._wake = time.monotonic() + seconds + self.timeout, wake
            reply = http.getresponse()
            self._deadline, self._wake = time.monotonic() + self.timeout, -1  # the rest follows soon
            text = reply.read()
        except (OSError, HTTPException, ssl.SSLError) as error:
            self.close()
            self.report_progress()  # a worker that gives up an answer is alive, too; several calls in a row may do so
            raise errors.ConnectionLost(f"the connection to SQS at {parts.netloc} broke: {reason(error)}") from None
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()
        if reply.will_close:
            self.close()
        self.report_progress()
        return reply.status, dict(reply.headers), text

    def _read(self, sock: Any, buffer: Any) -> int:
        while True:
            try:
                count: int = sock.recv_into(buffer)
                return count
            except (BlockingIOError, ssl.SSLWantReadError):
                ready = ready_of([sock.fileno(), self._wake], self._deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            if ready == [self._wake]:
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
        """A readable idle connection was closed by the server; after IDLE seconds a firewall may have dropped it."""
        sock = self._http.sock if self._http is not None else None
        if sock is None or identity(sock.fileno()) != self._file or time.monotonic() - self._used > IDLE:
            return True
        return bool(ready_of([sock.fileno()], 0))

    def _opened(self, scheme: str, netloc: str, host: str) -> HTTPConnection:
        self.report_progress(RESOLVE)
        http = self._http_to(scheme, netloc, host)
        response: Any = self._response
        http.response_class = response
        try:
            http.connect()
        except (OSError, HTTPException, ssl.SSLError) as error:
            http.close()
            raise errors.Unreachable(f"SQS at {netloc} does not answer: {reason(error)}") from None
        self._file = identity(http.sock.fileno())
        return http

    def _http_to(self, scheme: str, netloc: str, host: str) -> HTTPConnection:
        """Direct, or with TLS through the proxy that the environment names."""
        if scheme != "https":
            return HTTPConnection(netloc, timeout=self.connect_timeout)
        through = "" if proxy_bypass(host) else getproxies().get(scheme, "")
        if not through:
            return HTTPSConnection(netloc, timeout=self.connect_timeout, context=self._context())
        proxy = urlsplit(through if "//" in through else f"//{through}")
        address = proxy.hostname or "", proxy.port or 80
        http = HTTPSConnection(*address, timeout=self.connect_timeout, context=self._context())
        http.set_tunnel(netloc, headers=authorization(proxy.username, proxy.password))
        return http

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.ca:
            context.load_verify_locations(self.ca)
        return context

    def _response(self, sock: Any, *args: Any, **kwargs: Any) -> HTTPResponse:
        reader: Any = ReplyReader(sock, self._read)
        return HTTPResponse(reader, *args, **kwargs)

    def close(self) -> None:
        """A reply that arrives later is lost: a message in it is delivered again when its lease is over."""
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
    login = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(login).decode()}"}


def reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
