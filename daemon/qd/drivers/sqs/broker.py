"""SQS as a Broker, in messages.

reserve   ReceiveMessage, one at a time, hidden from others for retry_after; the wait is a long poll
delete    DeleteMessage
renew     ChangeMessageVisibility, by the keeper
send      SendMessageBatch, ten at a time

qd never repeats a call: a broken call may have been executed, and its effect shows at the next call. SQS delivers a
message that was received and lost again when its lease is over.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from qd.drivers.broker.base import Delivery, QueueCounts
from qd.drivers.sqs.client import NoSuchQueue, Service, Woken
from qd.drivers.sqs.messages import SqsMessages, whole
from qd.drivers.types import Gaps
from qd.drivers.urls import SqsUrl, is_fifo, is_name
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused, WrongPassword
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


SLICE = 1.0  # seconds to wait on one of several queues
JUST = 0.05  # seconds for which a queue that was waited on in vain is not queried again
ONCE_MORE = 60.0  # seconds for which SQS may deliver a message again that it has deleted
MANY = 3000  # deleted messages remembered for that, at most
LATER = 100  # messages still to be deleted, at most: others are delivered again, and deleted then
FRESH = 2.0  # seconds for which counts are reused
FEW = 3  # receives that a message may need without a fault of its job: workers that leave while they receive
LIMITS: Gaps = MappingProxyType(
    {
        "order": "standard queues keep no order; .fifo queues keep the order within a group",
        "head": "a job that qd hands back returns when SQS delivers it again, which may be after other jobs",
        "delay": "delays are whole seconds; a job waits on the control connection if over 15 minutes or in a .fifo queue",
        "find": "ready jobs cannot be found by id; those on the control connection, running and failed ones can",
        "clear": "ready jobs are deleted ten at a time; jobs that SQS itself delays (up to 15 minutes) stay",
        "sizes": "sizes come from SQS, are approximate and may be a minute old",
        "memory": "SQS stores jobs only; pauses, locks, failed jobs and long delays are on the control connection",
    }
)


class SqsBroker:
    """lease: seconds that a received message is hidden from others."""

    limits = LIMITS
    counts_ended = False
    slow = True

    def __init__(self, address: SqsUrl, *, lease: float, prefix: str = "") -> None:
        self.address, self.lease = address, lease
        self.service = Service(address)
        self.messages = SqsMessages(self.service, prefix)
        self.connection = self.service.http
        self.max_delay = float(address.longest_delay)
        self._loose: Delivery | None = None  # received, and not a running job yet
        self._undeleted: list[tuple[str, str, str]] = []
        self._deleted: list[tuple[float, str, str]] = []
        self._reported = False  # that messages cannot be deleted
        self._counted: dict[str, tuple[float, QueueCounts]] = {}
        self._empty: dict[str, float] = {}  # queue -> when it was last waited on in vain (monotonic)

    # -- sending

    def check(self, queue: str) -> None:
        if not is_name(name := self.address.name(queue, self.messages.prefix)):
            allowed = "up to 80 letters, digits, - and _, and .fifo at the end of a FIFO queue"
            raise ServerRefused(f"SQS cannot have a queue '{name}': {allowed}")

    def send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        self._counted.pop(queue, None)
        return self.messages.send(queue, [(payload, whole(delay)) for payload, delay in jobs])

    # -- reserving and answering

    def reserve(self, queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        """Without a wait, query each queue; a queue that no longer exists does not hide the others. With a wait, wait on
        several queues in turn, a second each."""
        until, missing = time.monotonic() + seconds, None
        for queue in [] if seconds else queues:
            try:
                found = self._received(queue, 0.0, -1)
            except NoSuchQueue as error:
                missing = missing or error
                continue
            if found is not None:
                return found
        if missing is not None:
            raise missing
        while (left := until - time.monotonic()) > 0:
            for queue in queues:
                if wake in ready_of([wake], 0):
                    return None
                wait = left if len(queues) == 1 else min(left, SLICE)
                try:
                    found = self._received(queue, wait, wake)
                except Woken:
                    return None
                if found is not None:
                    return found
        return None

    def _received(self, queue: str, seconds: float, wake: int) -> Delivery | None:
        """SQS waits whole seconds; less than half a second is spent here, before the call."""
        if not seconds and time.monotonic() - self._empty.get(queue, -1.0) < JUST:
            return None
        if 0 < seconds < 0.5 and wake in ready_of([wake], seconds):
            raise Woken
        found = self.messages.receive(queue, self.lease, round(seconds), wake)
        if found is None:
            if seconds:
                self._empty[queue] = time.monotonic()
            return None
        self._counted.pop(queue, None)
        self._loose = found if self.address.shared else found._replace(attempts=0)
        return self._loose

    def keep_reserved(self, delivery: Delivery | None) -> None:
        """The keeper renews it from now on."""
        if delivery is not None:
            self._settled(delivery.id)

    def extend(self, delivery: Delivery) -> bool:
        if self.messages.hide(delivery.queue, delivery.handle, self.lease):
            return True
        self._settled(delivery.id)
        return False

    def _settled(self, id: str) -> None:
        if self._loose is not None and self._loose.id == id:
            self._loose = None

    def delete(self, queue: str, id: str, handle: str, *, soon: bool = False) -> None:
        self._settled(id)
        self._undeleted = [*self._undeleted[-LATER:], (queue, id, handle)]
        self._delete()

    def deleted(self, wait: bool = False) -> list[tuple[str, str]]:
        """Not at once: SQS may deliver a message again that it has just deleted."""
        self._delete()
        until = time.monotonic() - (0 if wait else ONCE_MORE)
        more = len(self._deleted) - MANY
        found = [(queue, id) for n, (at, queue, id) in enumerate(self._deleted) if at <= until or n < more]
        self._deleted = self._deleted[len(found) :]
        return found

    def _delete(self) -> None:
        """Retry with the next delete what fails now. A message with an invalid handle was delivered again: the worker
        that has it deletes it."""
        try:
            while self._undeleted:
                queue, id, handle = self._undeleted[0]
                if self.messages.delete(queue, handle):
                    self._deleted.append((time.monotonic(), queue, id))
                del self._undeleted[0]
        except (ConnectionLost, ServerRefused) as error:
            if not self._reported and isinstance(error, WrongPassword | ServerRefused):
                self._reported = True  # a missing right to delete shows nowhere else
                logging.getLogger("qd.sqs").error(
                    "jobs that have ended cannot be deleted, and SQS delivers them again: %s", error
                )

    def release(self, delivery: Delivery, delay: float) -> None:
        """With a delay another worker is running the job: hide it for that lease at least."""
        self._settled(delivery.id)
        self.messages.hide(delivery.queue, delivery.handle, max(delay, self.lease) if delay else 0)

    def renew(self, held: Sequence[tuple[str, str, str]]) -> None:
        for queue in dict.fromkeys(queue for queue, _, _ in held):
            self.messages.hide_many(queue, [handle for at, _, handle in held if at == queue], self.lease)

    # -- queries

    def exists(self, queue: str, id: str) -> bool | None:
        return None

    def counts(self, queue: str) -> QueueCounts:
        at = time.monotonic()
        if queue not in self._counted or at - self._counted[queue][0] > FRESH:
            self._counted[queue] = at, self.messages.counts(queue)
        return self._counted[queue][1]

    def queues(self) -> Sequence[str]:
        """Empty: the account has queues of other programs, and listing needs a right that nothing else here needs."""
        return ()

    def clear(self, queue: str, forget: Callable[[bytes], None]) -> int:
        """Receive and delete, ten at a time, until SQS delivers nothing: a purge would also delete running jobs, and
        those sent within a minute after it."""
        count = 0
        self._counted.pop(queue, None)
        while messages := self.messages.receive_many(queue, self.lease):
            for message in messages:
                forget(message.body)
            count += self.messages.delete_many(queue, [message.handle for message in messages])
        return count

    def close(self) -> None:
        """A message that arrived while its worker leaves is released at once."""
        loose, self._loose = self._loose, None
        if loose is not None:
            with suppress(QdError):
                self.messages.hide(loose.queue, loose.handle, 0)
        self.service.close()


def start_warnings(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """Warnings about these queues, before any work. Raises ConfigError for a missing queue, and for credentials that are
    missing or refused. No warnings if the server is unreachable: workers wait for it later."""
    messages = SqsMessages(Service(SqsUrl(at.url or "")), at.prefix)
    try:
        return [warning for queue in queues if (warning := redriven(messages, queue, tries))]
    except (NoSuchQueue, WrongPassword) as error:
        raise ConfigError(f"connection '{at.name}': {error}") from None
    except (ConnectionLost, ServerRefused):
        return []
    finally:
        messages.service.close()


def redriven(messages: SqsMessages, queue: str, tries: int) -> str:
    """A warning if SQS moves jobs to a dead-letter queue before qd has used their tries, or ""."""
    messages.url(queue)
    most = 0
    with suppress(WrongPassword, ServerRefused, ValueError):  # the right to query this is optional
        policy = messages.attributes(queue, "RedrivePolicy").get("RedrivePolicy")
        most = int(json.loads(policy)["maxReceiveCount"]) if policy else 0
    where = f"queue '{queue}' moves a message to its dead-letter queue after {most} receives (maxReceiveCount)"
    if most and is_fifo(queue) and (not tries or most <= tries):
        return f"{where}, and each of {tries or 'any number of'} tries is one: jobs go there that qd would retry"
    if 0 < most < FEW:
        return (
            f"{where}: a job that arrives while a worker leaves may go there and never run; raise it to {FEW} or more"
        )
    return ""
