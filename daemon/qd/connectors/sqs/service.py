"""Calls to SQS: boto3 finds credentials, signs and reads the answers; what is sent goes through a `Line`, and only once.

boto3 is imported with this module, which is imported when a connection to SQS is used.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.exceptions as refusals
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.httpsession import get_cert_path

from qd.connectors.sqs.address import Address
from qd.connectors.sqs.line import Line, Woken
from qd.errors import ConfigError, ConnectionLost, NeedsMending, QdError, ServerBusy, ServerRefused, WrongPassword
from qd.masks import hide

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

    def __init__(self, address: Address) -> None:
        self.address, self.line = address, Line()
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
        hide([os.environ.get(name, "") for name in SECRETS])
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
