"""What qd asks of SQS: messages sent, received, deleted, made visible, counted. A queue is asked for its url once."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from qd.drivers.sqs.client import BUSY, NoSuchQueue, Service
from qd.drivers.urls import is_fifo
from qd.errors import ConnectionLost, Malformed, NeverTaken, QdError, ServerBusy, ServerRefused, TooLarge
from qd.payload.format import Payload, read, tags_of

BATCH = 10  # messages a request carries at most
BYTES = 1 << 20  # and bytes; where a server takes fewer, it says so, and the batch is halved
WAIT = 20  # seconds that SQS waits for a message at most
TRIES = 3  # times that what SQS itself has failed to take of a batch is sent
COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible")
TOO_LARGE = ("BatchRequestTooLong", "must be shorter than", "cannot be longer than")
UNFIT = ("InvalidMessageContents", "InvalidParameterValue", "InvalidParameterCombination", "MissingParameter")
GROUP = "group:"  # what the tag begins with that names a job's group
_NO_LETTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ODD = re.compile(r"[^!-~]")


NO_TEXT = NeverTaken("SQS takes text only, at least a letter and no control characters, and this payload is none")
UNSAID = ConnectionLost("the answer does not say whether SQS has taken it")
NOT_YET = ServerBusy("it was not sent yet")
Why = QdError | None


class Message(NamedTuple):
    """handle: what it is answered by, as long as nobody else has received it. received: how often it was, about."""

    id: str
    handle: str
    body: bytes
    received: int


class Counts(NamedTuple):
    """About; delayed: by SQS itself; in_hand: received and not yet answered."""

    visible: int
    delayed: int
    in_hand: int


class SqsMessages:
    def __init__(self, service: Service, prefix: str = "") -> None:
        """prefix: what the names of all queues begin with there."""
        self.service, self.prefix = service, prefix
        self._urls: dict[str, str] = {}

    def url(self, queue: str) -> str:
        """Raises NoSuchQueue naming it."""
        if queue not in self._urls:
            address = self.service.address
            asked: dict[str, Any] = {"QueueName": address.name(queue, self.prefix)}
            if address.account:
                asked["QueueOwnerAWSAccountId"] = address.account
            try:
                self._urls[queue] = str(self.service.call("get_queue_url", **asked)["QueueUrl"])
            except KeyError:
                raise ConnectionLost(f"the server at {address.place} answers what no SQS answers") from None
            except NoSuchQueue:
                raise self._unknown(queue) from None
        return self._urls[queue]

    def _unknown(self, queue: str) -> NoSuchQueue:
        place, name = self.service.address.place, self.service.address.name(queue, self.prefix)
        way = f"make it (aws sqs create-queue --queue-name {name}), or mend the name"
        return NoSuchQueue(f"queue '{queue}' is not there: SQS at {place} knows no '{name}': {way}")

    def _call(self, operation: str, queue: str, **asked: Any) -> dict[str, Any]:
        try:
            return self.service.call(operation, QueueUrl=self.url(queue), **asked)
        except NoSuchQueue:
            self._urls.pop(queue, None)  # it was deleted; one that is made anew may have another url
            raise self._unknown(queue) from None

    # -- sending

    def send(self, queue: str, jobs: Sequence[tuple[bytes, int]]) -> list[Why]:
        """Payloads, each with its delay in seconds, in the order given. For each why it was not sent, None: it was. After a
        request that was refused as a whole, or broke, no more are made."""
        found: list[Why] = [NOT_YET if is_text(payload) else NO_TEXT for payload, _ in jobs]
        try:
            for places in batches([(place, jobs[place][0]) for place, why in enumerate(found) if why is NOT_YET]):
                self._send(queue, jobs, places, found)
        except QdError as error:
            return [error if why is NOT_YET else why for why in found]
        return found

    def _send(self, queue: str, jobs: Sequence[tuple[bytes, int]], places: Sequence[int], found: list[Why]) -> None:
        for again in range(TRIES):
            time.sleep(0.1 * again)
            self._batch(queue, jobs, places, found)
            places = [place for place in places if isinstance(found[place], ServerBusy)]
            if not places:
                return

    def _batch(self, queue: str, jobs: Sequence[tuple[bytes, int]], places: Sequence[int], found: list[Why]) -> None:
        """One request. What SQS itself has failed to take (ServerBusy) was not sent, and may be sent again."""
        entries = [{"Id": str(place), **entry_of(queue, *jobs[place])} for place in places]
        try:
            answer = self._call("send_message_batch", queue, Entries=entries)
        except ServerRefused as error:
            if not is_unfit(str(error)):
                raise
            if len(places) == 1:
                found[places[0]] = unfit(jobs[places[0]][0], str(error))
                return
            for half in (places[: len(places) // 2], places[len(places) // 2 :]):
                self._batch(queue, jobs, half, found)
            return
        for place in places:
            found[place] = UNSAID
        for each in answer.get("Successful", ()):
            found[int(each["Id"])] = None
        for each in answer.get("Failed", ()):
            found[int(each["Id"])] = why_of(each)

    # -- receiving and answering

    def receive(self, queue: str, lease: float, seconds: float = 0.0, wake: int = -1) -> Message | None:
        """One message, nobody else's for `lease` seconds; waited for `seconds` at most. Raises Woken, when `wake` did."""
        wait = min(WAIT, int(seconds))
        asked: dict[str, Any] = {
            "MaxNumberOfMessages": 1,
            "WaitTimeSeconds": wait,
            "VisibilityTimeout": whole(lease),
            "AttributeNames": ["ApproximateReceiveCount"],
        }
        answer = self._call("receive_message", queue, seconds=wait, wake=wake, **asked)
        return next(iter(messages_of(answer)), None)

    def receive_many(self, queue: str, lease: float) -> list[Message]:
        """Ten at most, at once."""
        return messages_of(
            self._call("receive_message", queue, MaxNumberOfMessages=BATCH, VisibilityTimeout=whole(lease))
        )

    def delete(self, queue: str, handle: str) -> bool:
        """False: SQS does not know this handle any more."""
        return self._answered("delete_message", queue, ReceiptHandle=handle)

    def delete_many(self, queue: str, handles: Sequence[str]) -> int:
        """Ten at most. Returns how many of them are gone."""
        entries = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(handles)]
        return len(self._call("delete_message_batch", queue, Entries=entries).get("Successful", ()))

    def hide(self, queue: str, handle: str, seconds: float) -> bool:
        """Nobody else is given it for so long from now, 0: anybody may have it at once. False: it is not in hand any more,
        or was for as long as SQS lets anybody have one (12 hours)."""
        asked = {"ReceiptHandle": handle, "VisibilityTimeout": whole(seconds)}
        return self._answered("change_message_visibility", queue, **asked)

    def hide_many(self, queue: str, handles: Sequence[str], seconds: float) -> list[str]:
        """As `hide`. Returns those that are not in hand any more."""
        lost = list[str]()
        for at in range(0, len(handles), BATCH):
            some = handles[at : at + BATCH]
            entries = [
                {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": whole(seconds)}
                for place, handle in enumerate(some)
            ]
            answer = self._call("change_message_visibility_batch", queue, Entries=entries)
            lost += [some[int(each["Id"])] for each in answer.get("Failed", ()) if each.get("SenderFault", True)]
        return lost

    def _answered(self, operation: str, queue: str, **asked: Any) -> bool:
        try:
            self._call(operation, queue, **asked)
        except NoSuchQueue:
            raise
        except ServerRefused as error:
            if not any(word in str(error) for word in ("ReceiptHandle", "MessageNotInflight", "InvalidParameterValue")):
                raise
            return False
        return True

    # -- looking

    def counts(self, queue: str) -> Counts:
        said = self.attributes(queue, *COUNTS)
        return Counts(*[int(said.get(name, 0)) for name in COUNTS])

    def attributes(self, queue: str, *names: str) -> dict[str, str]:
        found: dict[str, str] = self._call("get_queue_attributes", queue, AttributeNames=list(names)).get(
            "Attributes", {}
        )
        return found


def batches(payloads: Sequence[tuple[int, bytes]]) -> Iterator[list[int]]:
    """Places of payloads that fit into a request."""
    some, size = list[int](), 0
    for place, payload in payloads:
        if some and (len(some) == BATCH or size + len(payload) > BYTES):
            yield some
            some, size = [], 0
        some.append(place)
        size += len(payload)
    if some:
        yield some


def is_text(payload: bytes) -> bool:
    """Such as SQS takes: some of the letters that XML allows. JSON escapes most others."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and not _NO_LETTER.search(text)


def entry_of(queue: str, payload: bytes, delay: int) -> dict[str, Any]:
    """As SQS takes it. A FIFO queue knows no delay for a single message."""
    entry: dict[str, Any] = {"MessageBody": payload.decode()}
    if is_fifo(queue):
        return {**entry, **grouped(queue, payload)}
    return {**entry, "DelaySeconds": delay} if delay else entry


def grouped(queue: str, payload: bytes) -> dict[str, str]:
    """Of a FIFO queue: the group, in which jobs run one after the other, and what tells a job that is sent twice."""
    try:
        known: Payload | None = read(payload)
    except Malformed:
        known = None
    tags = tags_of(payload) if b'"tags":' in payload else ()
    group = next((tag[len(GROUP) :] for tag in tags if tag.startswith(GROUP)), "") or queue
    once = secrets.token_hex(16)
    if known is not None and known.uuid and known.createdAt is not None:  # else one that is retried would be the same
        once = f"{known.uuid}.{known.createdAt}.{known.attempts}.{known.crashes}"
    return {"MessageGroupId": printable(group), "MessageDeduplicationId": printable(once)}


def printable(text: str) -> str:
    """128 letters at most, of those that SQS takes."""
    return _ODD.sub(lambda odd: f"%{ord(odd[0]):X}", text)[:128]


def messages_of(answer: dict[str, Any]) -> list[Message]:
    return [
        Message(
            each["MessageId"],
            each["ReceiptHandle"],
            each["Body"].encode("utf-8", "surrogatepass"),
            int(each.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        )
        for each in answer.get("Messages", ())
    ]


def whole(seconds: float) -> int:
    """Never early: SQS knows whole seconds only."""
    return -int(-seconds // 1)


def why_of(failed: dict[str, Any]) -> QdError:
    said = f"{failed.get('Code', 'unknown')}: {failed.get('Message', '')}".rstrip(": ")
    if is_too_large(said):
        return TooLarge(said)
    if not failed.get("SenderFault", True) or any(word in said for word in BUSY):
        return ServerBusy(f"SQS cannot take it now: {said}")
    return NeverTaken(said) if is_unfit(said) else ServerRefused(said)


def unfit(payload: bytes, said: str) -> NeverTaken:
    if is_too_large(said):
        return TooLarge(f"{len(payload)} bytes are more than SQS takes: {said}")
    return NeverTaken(f"SQS does not take what stands in it: {said}")


def is_unfit(said: str) -> bool:
    """For what one of the messages is, and not for who asks, or when."""
    return is_too_large(said) or any(word in said for word in UNFIT)


def is_too_large(said: str) -> bool:
    return any(word in said for word in TOO_LARGE)
