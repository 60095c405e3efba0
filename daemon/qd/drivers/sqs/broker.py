"""SQS as a server that keeps jobs and nothing else: what drivers/broker asks of it, in messages.

take    ReceiveMessage, one at a time, nobody else's for retry_after; waited for by a long poll
drop    DeleteMessage            renewed   ChangeMessageVisibility, by the keeper
send    SendMessageBatch, by tens

Nothing is sent twice by this side: of a call that broke nobody knows, and what it did shows by itself. A message that was
received and never heard of comes back when its lease is over.

What `qd work` finds out about its queues on SQS before it works on them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from qd.drivers.base import Patience
from qd.drivers.broker.base import Delivery, Standing
from qd.drivers.sqs.client import NoSuchQueue, Service, Woken
from qd.drivers.sqs.messages import SqsMessages, whole
from qd.drivers.types import Gaps
from qd.drivers.urls import SqsUrl, is_fifo, is_name
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused, WrongPassword
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


SLICE = 1.0  # seconds that one of several queues is waited on
JUST = 0.05  # seconds for which a queue that was waited on in vain need not be asked again
ONCE_MORE = 60.0  # seconds for which a deleted message is still known as one that has ended
MANY = 3000  # of them at most
LATER = 100  # messages that are still to be deleted, at most: others come again, and are dropped then
FRESH = 2.0  # seconds for which counts need not be asked for again by who changes nothing
LIMITS: Gaps = MappingProxyType(
    {
        "order": "a standard queue of SQS keeps no order; a .fifo queue keeps it in each group",
        "head": "what is handed back comes when SQS gives it out, not before others",
        "delay": "delays are whole seconds; over 15 minutes, and in .fifo queues, they wait on the control connection",
        "find": "a ready job cannot be looked for: it is found while it waits on the control connection, runs or has failed",
        "clear": "what is ready is received and deleted by tens; what SQS itself delays stays (15 minutes at most)",
        "sizes": "sizes are SQS's own, and approximate: they may be a minute old",
        "memory": "it keeps jobs and nothing else: pauses, locks, failed jobs and delays stand on the control connection",
    }
)


class SqsBackend(Patience):
    """lease: seconds that a message is nobody else's."""

    limits = LIMITS
    counts_ended = False
    slow = True

    def __init__(self, address: SqsUrl, *, lease: float, prefix: str = "") -> None:
        self.address, self.lease = address, lease
        self.service = Service(address)
        self.messages = SqsMessages(self.service, prefix)
        self.connect_timeout, self.timeout = self.service.line.connect_timeout, self.service.line.timeout
        self.longest = float(address.longest_delay)
        self._loose: Delivery | None = None  # taken, and not yet anybody's job
        self._undeleted: list[tuple[str, str, str]] = []
        self._deleted: list[tuple[float, str, str]] = []
        self._said = False
        self._counted: dict[str, tuple[float, Standing]] = {}
        self._empty: dict[str, float] = {}  # queue -> when it was last waited on in vain

    @property
    def place(self) -> str:
        return self.address.place

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        self.service.line.patience(connect, answer)

    def on_progress(self, call: Callable[[float], None]) -> None:
        self.service.line.on_progress(call)

    # -- sending

    def check(self, queue: str) -> None:
        name = self.address.name(queue, self.messages.prefix)
        if not is_name(name):
            raise ServerRefused(
                f"SQS has no queue '{name}': up to 80 letters, digits, - and _, and .fifo at the end of a FIFO queue"
            )

    def send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        self._counted.pop(queue, None)
        return self.messages.send(queue, [(payload, whole(delay)) for payload, delay in jobs])

    # -- working

    def take(self, queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        """Of several queues each is looked at; then each is waited on for a second, in turn. One that is not there any more
        holds up no other."""
        until, gone = time.monotonic() + seconds, None
        for queue in [] if seconds else queues:
            try:
                found = self._received(queue, 0.0, -1)
            except NoSuchQueue as error:
                gone = gone or error
                continue
            if found is not None:
                return found
        if gone is not None:
            raise gone
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
        """SQS waits whole seconds: a part of one is slept away first."""
        if not seconds and time.monotonic() - self._empty.get(queue, -1.0) < JUST:
            return None
        if 0 < seconds < 0.5 and wake in ready_of([wake], seconds):
            raise Woken
        message = self.messages.receive(queue, self.lease, round(seconds), wake)
        if message is None:
            if seconds:
                self._empty[queue] = time.monotonic()
            return None
        before = message.received - 1 if self.address.shared else 0
        self._counted.pop(queue, None)
        self._loose = Delivery(queue, message.id, message.handle, message.body, attempts=before)
        return self._loose

    def hold(self, parcel: Delivery | None) -> None:
        """It is a job now, and its lease is the keeper's."""
        if parcel is not None:
            self._settled(parcel.id)

    def kept(self, parcel: Delivery) -> bool:
        if self.messages.hide(parcel.queue, parcel.handle, self.lease):
            return True
        self._settled(parcel.id)
        return False

    def _settled(self, id: str) -> None:
        if self._loose is not None and self._loose.id == id:
            self._loose = None

    def drop(self, queue: str, id: str, handle: str, *, soon: bool = False) -> None:
        self._settled(id)
        self._undeleted = [*self._undeleted[-LATER:], (queue, id, handle)]
        self._delete()

    def gone(self, wait: bool = False) -> list[tuple[str, str]]:
        """Not at once: SQS may give out a message once more that it has just deleted."""
        self._delete()
        until = time.monotonic() - (0 if wait else ONCE_MORE)
        found = [
            (queue, id) for place, (at, queue, id) in enumerate(reversed(self._deleted)) if at <= until or place >= MANY
        ]
        self._deleted = self._deleted[len(found) :]
        return found

    def _delete(self) -> None:
        """What cannot be deleted now is tried again with the next. One whose handle is not known any more was given out
        once more: who has it deletes it."""
        try:
            while self._undeleted:
                queue, id, handle = self._undeleted[0]
                if self.messages.delete(queue, handle):
                    self._deleted.append((time.monotonic(), queue, id))
                del self._undeleted[0]
        except (ConnectionLost, ServerRefused) as error:
            self._say(error)

    def _say(self, error: QdError) -> None:
        """Once: that messages may not be deleted is seen nowhere else."""
        if self._said or not isinstance(error, WrongPassword | ServerRefused):
            return
        self._said = True
        logging.getLogger("qd.sqs").error(
            "jobs that have ended cannot be deleted, and come again to be dropped: %s", error
        )

    def put_back(self, parcel: Delivery, delay: float) -> None:
        """What another worker has in hand need not be looked at before its lease is over."""
        self._settled(parcel.id)
        self.messages.hide(parcel.queue, parcel.handle, max(delay, self.lease) if delay else 0)

    def show(self, queue: str, handle: str, delay: float) -> None:
        """Let it be given out in `delay` seconds, as it is."""
        self.messages.hide(queue, handle, delay)

    def renewed(self, held: Sequence[tuple[str, str, str]]) -> None:
        for queue in dict.fromkeys(queue for queue, _, _ in held):
            self.messages.hide_many(queue, [handle for at, _, handle in held if at == queue], self.lease)

    # -- looking

    def there(self, queue: str, id: str) -> bool | None:
        return None

    def standing(self, queue: str) -> Standing:
        at = time.monotonic()
        if queue not in self._counted or at - self._counted[queue][0] > FRESH:
            self._counted[queue] = at, Standing(*self.messages.counts(queue))
        return self._counted[queue][1]

    def queues(self) -> Sequence[str]:
        """None: the account has queues of other programs, and listing them needs a right that nothing else here needs."""
        return ()

    def clear(self, queue: str, forget: Callable[[bytes], None]) -> int:
        """Until nothing is given out any more, ten at a time: a purge would take what runs, too, and what is sent in the
        minute after it."""
        count, _ = 0, self._counted.pop(queue, None)
        while some := self.messages.receive_many(queue, self.lease):
            for message in some:
                forget(message.body)
            count += self.messages.delete_many(queue, [message.handle for message in some])
        return count

    def close(self) -> None:
        """A message that came while its worker leaves goes back at once."""
        loose, self._loose = self._loose, None
        if loose is not None:
            with suppress(QdError):
                self.messages.hide(loose.queue, loose.handle, 0)
        self.service.close()


FEW = 3  # receives that a message may need though nothing is wrong with its job: workers leave while they ask


def look(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """What is odd about these queues, in words. Raises ConfigError for one that is not there, and for credentials that are
    missing or refused. A server that does not answer is waited for later."""
    messages = SqsMessages(Service(SqsUrl(at.url or "")), at.prefix)
    try:
        return [hint for queue in queues if (hint := redriven(messages, queue, tries))]
    except (NoSuchQueue, WrongPassword) as error:
        raise ConfigError(f"connection '{at.name}': {error}") from None
    except (ConnectionLost, ServerRefused):
        return []
    finally:
        messages.service.close()


def redriven(messages: SqsMessages, queue: str, tries: int) -> str:
    """That SQS takes jobs away before qd is through with them. "" where it does not."""
    messages.url(queue)
    most = 0
    with suppress(WrongPassword, ServerRefused, ValueError):  # not everybody may ask, or need
        policy = messages.attributes(queue, "RedrivePolicy").get("RedrivePolicy")
        most = int(json.loads(policy)["maxReceiveCount"]) if policy else 0
    if not most:
        return ""
    where = (
        f"queue '{queue}' moves a message to its dead-letter queue when it was received {most} times (maxReceiveCount)"
    )
    if is_fifo(queue) and (not tries or most <= tries):
        return (
            f"{where}, and each try of a job is one, of {tries or 'any number'}: jobs go there that qd would try again"
        )
    if most < FEW:
        return f"{where}: one that comes while a worker leaves may go there and never run; raise it to {FEW} or more"
    return ""
