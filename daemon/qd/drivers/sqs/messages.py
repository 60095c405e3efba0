"""Messages of SQS: sent, received, deleted, hidden, counted. The url of a queue is queried once."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from qd.drivers.broker.base import Delivery, QueueCounts
from qd.drivers.keyspace.base import chunked, chunked_by_size
from qd.drivers.sqs.client import BUSY, NoSuchQueue, Service, has
from qd.drivers.urls import is_fifo
from qd.errors import ConnectionLost, NeverTaken, QdError, ServerBusy, ServerRefused, TooLarge
from qd.payload.format import readable, tags_of

BATCH = 10  # messages per request, at most
BYTES = 1 << 20  # bytes per request; if a queue accepts fewer, SQS refuses the batch and it is halved
WAIT = 20  # seconds that SQS waits for a message at most
TRIES = 3  # sends of messages that SQS itself failed to accept
COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible")
RECEIVED = "ApproximateReceiveCount"
TOO_LARGE = ("BatchRequestTooLong", "must be shorter than", "cannot be longer than")
UNFIT = (
    *TOO_LARGE,
    "InvalidMessageContents",
    "InvalidParameterValue",
    "InvalidParameterCombination",
    "MissingParameter",
)
GROUP = "group:"  # prefix of the tag that names a job's group
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NOT_PRINTABLE = re.compile(r"[^!-~]")

NO_TEXT = NeverTaken("SQS accepts only text without control characters, at least one character")
UNREPORTED = ConnectionLost("the reply does not say whether SQS has accepted it")
NOT_YET = ServerBusy("it was not sent yet")


class SqsMessages:
    def __init__(self, service: Service, prefix: str = "") -> None:
        """prefix: of the names of all queues in SQS."""
        self.service, self.prefix = service, prefix
        self._urls: dict[str, str] = {}

    def url(self, queue: str) -> str:
        """Raises NoSuchQueue with its name and the fix."""
        if queue not in self._urls:
            address = self.service.address
            params: dict[str, Any] = {"QueueName": address.name(queue, self.prefix)}
            if address.account:
                params["QueueOwnerAWSAccountId"] = address.account
            try:
                self._urls[queue] = str(self.service.call("get_queue_url", **params)["QueueUrl"])
            except KeyError:
                raise ConnectionLost(f"the server at {address.place} does not answer like SQS") from None
            except NoSuchQueue:
                raise self._unknown(queue) from None
        return self._urls[queue]

    def _unknown(self, queue: str) -> NoSuchQueue:
        place, name = self.service.address.place, self.service.address.name(queue, self.prefix)
        fix = f"create it (aws sqs create-queue --queue-name {name}), or correct the name"
        return NoSuchQueue(f"queue '{queue}' does not exist: SQS at {place} has no '{name}': {fix}")

    def _call(self, operation: str, queue: str, **params: Any) -> dict[str, Any]:
        try:
            return self.service.call(operation, QueueUrl=self.url(queue), **params)
        except NoSuchQueue:
            self._urls.pop(queue, None)  # it was deleted; a new one may have another url
            raise self._unknown(queue) from None

    # -- sending

    def send(self, queue: str, jobs: Sequence[tuple[bytes, int]]) -> list[QdError | None]:
        """Send payloads, each with its delay in seconds, in order. Returns an error for each that was not sent. After a
        request that failed as a whole no more are made."""
        found: list[QdError | None] = [NOT_YET if is_text(payload) else NO_TEXT for payload, _ in jobs]
        try:
            for places in batches([(place, jobs[place][0]) for place, error in enumerate(found) if error is NOT_YET]):
                self._send(queue, jobs, places, found)
        except QdError as error:
            return [error if each is NOT_YET else each for each in found]
        return found

    def _send(
        self, queue: str, jobs: Sequence[tuple[bytes, int]], places: Sequence[int], found: list[QdError | None]
    ) -> None:
        for again in range(TRIES):
            time.sleep(0.1 * again)
            self._batch(queue, jobs, places, found)
            places = [place for place in places if isinstance(found[place], ServerBusy)]
            if not places:
                return

    def _batch(
        self, queue: str, jobs: Sequence[tuple[bytes, int]], places: Sequence[int], found: list[QdError | None]
    ) -> None:
        """One request. A message with ServerBusy was not sent, and can be sent again."""
        entries = [{"Id": str(place), **entry_of(queue, *jobs[place])} for place in places]
        try:
            reply = self._call("send_message_batch", queue, Entries=entries)
        except ServerRefused as error:
            if not has(str(error), UNFIT):
                raise
            if len(places) == 1:
                size, large = len(jobs[places[0]][0]), has(str(error), TOO_LARGE)
                why = f"{size} bytes are more than SQS accepts" if large else "SQS does not accept its content"
                found[places[0]] = (TooLarge if large else NeverTaken)(f"{why}: {error}")
                return
            for half in (places[: len(places) // 2], places[len(places) // 2 :]):
                self._batch(queue, jobs, half, found)
            return
        for place in places:
            found[place] = UNREPORTED
        for each in reply.get("Successful", ()):
            found[int(each["Id"])] = None
        for each in reply.get("Failed", ()):
            found[int(each["Id"])] = error_of(each)

    # -- receiving and answering

    def receive(self, queue: str, lease: float, seconds: float = 0.0, wake: int = -1) -> Delivery | None:
        """One message, hidden from others for `lease` seconds. Waits `seconds` at most. Raises Woken if `wake` did."""
        wait = min(WAIT, int(seconds))
        params: dict[str, Any] = {
            "MaxNumberOfMessages": 1,
            "WaitTimeSeconds": wait,
            "VisibilityTimeout": whole(lease),
            "AttributeNames": [RECEIVED],
        }
        reply = self._call("receive_message", queue, seconds=wait, wake=wake, **params)
        return next(iter(deliveries_of(queue, reply)), None)

    def receive_many(self, queue: str, lease: float) -> list[Delivery]:
        """Ten at most, without waiting."""
        params = {"MaxNumberOfMessages": BATCH, "VisibilityTimeout": whole(lease)}
        return deliveries_of(queue, self._call("receive_message", queue, **params))

    def delete(self, queue: str, handle: str) -> bool:
        """Returns False if the handle is no longer valid."""
        return self._answered("delete_message", queue, ReceiptHandle=handle)

    def delete_many(self, queue: str, handles: Sequence[str]) -> int:
        """Ten at most. Returns how many were deleted."""
        entries = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(handles)]
        return len(self._call("delete_message_batch", queue, Entries=entries).get("Successful", ()))

    def hide(self, queue: str, handle: str, seconds: float) -> bool:
        """Hide it for so long from now; 0 makes it available at once. Returns False if the handle is no longer valid, or the
        message has been hidden for the 12 hours that SQS allows."""
        params = {"ReceiptHandle": handle, "VisibilityTimeout": whole(seconds)}
        return self._answered("change_message_visibility", queue, **params)

    def hide_many(self, queue: str, handles: Sequence[str], seconds: float) -> None:
        """As `hide`."""
        for some in chunked(handles, BATCH):
            hidden = {"VisibilityTimeout": whole(seconds)}
            entries = [{"Id": str(n), "ReceiptHandle": handle, **hidden} for n, handle in enumerate(some)]
            self._call("change_message_visibility_batch", queue, Entries=entries)

    def _answered(self, operation: str, queue: str, **params: Any) -> bool:
        try:
            self._call(operation, queue, **params)
        except NoSuchQueue:
            raise
        except ServerRefused as error:
            if not has(str(error), ("ReceiptHandle", "MessageNotInflight", "InvalidParameterValue")):
                raise
            return False
        return True

    # -- looking

    def counts(self, queue: str) -> QueueCounts:
        """Approximate. delayed: by SQS itself. reserved: received and not yet deleted."""
        found = self.attributes(queue, *COUNTS)
        return QueueCounts(*[int(found.get(name, 0)) for name in COUNTS])

    def attributes(self, queue: str, *names: str) -> dict[str, str]:
        reply = self._call("get_queue_attributes", queue, AttributeNames=list(names))
        return dict[str, str](reply.get("Attributes", {}))


def batches(payloads: Sequence[tuple[int, bytes]]) -> Iterator[list[int]]:
    """Places of the payloads of each request."""
    for some in chunked_by_size(payloads, lambda each: len(each[1]), BATCH, BYTES):
        yield [place for place, _ in some]


def is_text(payload: bytes) -> bool:
    """Whether SQS accepts it: characters that XML allows, at least one. JSON escapes most others."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and not _NOT_XML.search(text)


def entry_of(queue: str, payload: bytes, delay: int) -> dict[str, Any]:
    """The entry of a request. A FIFO queue cannot delay a single message."""
    entry: dict[str, Any] = {"MessageBody": payload.decode()}
    if is_fifo(queue):
        return {**entry, **grouped(queue, payload)}
    return {**entry, "DelaySeconds": delay} if delay else entry


def grouped(queue: str, payload: bytes) -> dict[str, str]:
    """For a FIFO queue: the group, whose jobs run one after the other, and the id that detects a job sent twice."""
    known = readable(payload)
    tags = tags_of(payload) if b'"tags":' in payload else ()
    group = next((tag[len(GROUP) :] for tag in tags if tag.startswith(GROUP)), "") or queue
    once = secrets.token_hex(16)
    if known is not None and known.uuid and known.createdAt is not None:  # else a retry would have the same id
        once = f"{known.uuid}.{known.createdAt}.{known.attempts}.{known.crashes}"
    return {"MessageGroupId": printable(group), "MessageDeduplicationId": printable(once)}


def printable(text: str) -> str:
    """At most 128 characters, all of them allowed by SQS."""
    return _NOT_PRINTABLE.sub(lambda found: f"%{ord(found[0]):X}", text)[:128]


def deliveries_of(queue: str, reply: dict[str, Any]) -> list[Delivery]:
    """attempts: how often it was received before, approximately."""
    found = list[Delivery]()
    for each in reply.get("Messages", ()):
        body, received = each["Body"].encode("utf-8", "surrogatepass"), each.get("Attributes", {}).get(RECEIVED, 1)
        found.append(Delivery(queue, each["MessageId"], each["ReceiptHandle"], body, int(received) - 1))
    return found


def whole(seconds: float) -> int:
    """Rounded up: SQS accepts whole seconds only."""
    return -int(-seconds // 1)


def error_of(failed: dict[str, Any]) -> QdError:
    text = f"{failed.get('Code', 'unknown')}: {failed.get('Message', '')}".rstrip(": ")
    if has(text, TOO_LARGE):
        return TooLarge(text)
    if not failed.get("SenderFault", True) or has(text, BUSY):
        return ServerBusy(f"SQS cannot accept it now: {text}")
    return NeverTaken(text) if has(text, UNFIT) else ServerRefused(text)
