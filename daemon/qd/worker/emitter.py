"""Sends what jobs emit, in one thread for all jobs of a worker, which the first event starts.

    job.emit -> Emitter.add: collected -> after 50 ms, or 64 events of one job -> one round trip, emit.lua for each job
    the attempt has ended -> Emitter.end: sent at once -> then the job is settled

While the server is unreachable, events wait in memory, for each job as many as its stream would keep. The call that may have
been executed is repeated: emit.lua skips what it has appended before.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from qd.drivers.base import Connector
from qd.errors import ConnectionLost
from qd.log import Log
from qd.store import streams
from qd.store.streams import KEPT, MOST_EVENTS, Emitted

COLLECT = 0.05  # seconds
FULL = 64  # events of one job that are sent without waiting
SENT = 250  # events of one job in a call
MOST_UNSENT = 16 << 20  # bytes of the unsent events of all jobs
PATIENCE = 2.0  # seconds that a call may wait for the server
AGAIN = 0.25  # seconds between two tries while the server is unreachable


@dataclass(slots=True)
class Attempt:
    """The events of one attempt. unsent: (position in the attempt, JSON). base: the number before its first event, -1:
    unknown. then: called once everything is sent, after the end of the attempt."""

    id: str
    mark: str
    ttl: float
    base: int = -1
    count: int = 0
    dropped: int = 0
    unsent: deque[tuple[int, bytes]] = field(default_factory=deque)
    then: Callable[[], object] | None = None


class Emitter:
    """opened: the connection of the thread that calls it. lock: of what the jobs' threads and this one share."""

    def __init__(self, opened: Callable[[], Connector], log: Log) -> None:
        self._opened, self.log = opened, log
        self.lock = threading.RLock()  # a signal handler of a job may emit during an emit
        self.used = False  # a job of this worker has emitted
        self._attempts = dict[str, Attempt]()
        self._size = 0  # bytes of all unsent events
        self._filled, self._urgent = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # -- in the jobs' threads, and on the event loop

    def add(self, mark: str, id: str, ttl: float | None, data: bytes) -> None:
        """Collect an event of the attempt `mark`. The caller has the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="qd-events", daemon=True)
            thread.start()
            self._thread = thread
        attempt = self._attempts.get(mark) or self._attempts.setdefault(mark, Attempt(id, mark, max(KEPT, ttl or 0.0)))
        attempt.count += 1
        attempt.unsent.append((attempt.count, data))
        self._size += len(data)
        while len(attempt.unsent) > MOST_EVENTS or (self._size > MOST_UNSENT and attempt.unsent):
            self._size -= len(attempt.unsent.popleft()[1])
            attempt.dropped += 1
        self._filled.set()
        if len(attempt.unsent) >= FULL:
            self._urgent.set()

    def has(self, mark: str) -> bool:
        """Whether the attempt has emitted. It has ended."""
        if not self.used:
            return False
        with self.lock:
            return mark in self._attempts

    def end(self, mark: str, then: Callable[[], object]) -> bool:
        """The attempt has ended. True: `then` will be called in this object's thread once its events are sent. False: all
        are."""
        if not self.used:
            return False
        with self.lock:
            attempt = self._attempts.get(mark)
            if attempt is None or not attempt.unsent:
                return False
            attempt.then = then
        self._filled.set()
        self._urgent.set()
        return True

    def forget(self, mark: str) -> float | None:
        """Returns the TTL of its stream, None if the attempt has emitted nothing."""
        with self.lock:
            attempt = self._attempts.pop(mark, None)
        return None if attempt is None else attempt.ttl

    # -- in its own thread

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        while True:
            self._filled.wait()
            self._urgent.wait(COLLECT)
            self._filled.clear()
            self._urgent.clear()
            try:
                self._send()
            except ConnectionLost as error:
                self.log.debug("job.emit", kept="in memory", error=str(error))
                self._filled.set()
                time.sleep(AGAIN)

    def _send(self) -> None:
        """Send what has been collected, up to SENT events of each job. Raises ConnectionLost: it may have been sent."""
        with self.lock:
            attempts = [each for each in self._attempts.values() if each.unsent]
            batches = [batch_of(each) for each in attempts]
        try:
            queue = self._opened()
            with queue.within(PATIENCE):
                replies = streams.append(*queue.kept, batches)
        except ConnectionLost:
            raise
        except Exception as error:  # this connection keeps no events
            replies = [error] * len(batches)
        away: ConnectionLost | None = None
        for attempt, batch, reply in zip(attempts, batches, replies, strict=True):
            if isinstance(reply, ConnectionLost):
                away = reply
            else:
                self._sent(attempt, batch, reply)
        if away is not None:
            raise away

    def _sent(self, attempt: Attempt, batch: Emitted, reply: object) -> None:
        with self.lock:
            while attempt.unsent and attempt.unsent[0][0] <= batch.events[-1][0]:
                self._size -= len(attempt.unsent.popleft()[1])
            refused = reply if isinstance(reply, Exception) else None
            attempt.base = int(reply) if isinstance(reply, bytes) else attempt.base
            dropped, attempt.dropped = attempt.dropped + (len(batch.events) if refused else 0), 0
            then = None if attempt.unsent else attempt.then
        if attempt.unsent:
            self._filled.set()
            self._urgent.set()
        if dropped:
            reason = str(refused or "the server was unreachable for too long")
            self.log.warning("job.events_dropped", id=attempt.id, count=dropped, reason=reason)
        if then is not None:
            then()


def batch_of(attempt: Attempt) -> Emitted:
    events = [attempt.unsent[at] for at in range(min(SENT, len(attempt.unsent)))]
    return Emitted(attempt.id, attempt.mark, attempt.base, attempt.ttl, events)
