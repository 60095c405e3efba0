"""Sends what jobs emit, in one thread for all jobs of a worker, which the first event starts.

    job.emit -> Emitter.add: collected -> after 50 ms, or 64 events of one job -> one round trip, emit.lua for each job
    the attempt has ended -> Emitter.end: sent at once -> then the job is settled

While the server is unreachable, events wait in memory, of each job as many as its stream would keep. A call that the server
may have executed is repeated: emit.lua skips what it has appended before.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from qd.drivers.base import Connector
from qd.drivers.keyspace.base import Arg
from qd.errors import ConnectionLost, NoAnswer
from qd.log import Log

COLLECT = 0.05  # seconds
FULL = 64  # events of one job that are sent without waiting
SENT = 250  # events of one job in a call
MOST_EVENTS, MOST_BYTES = 1000, 1 << 20  # that a stream keeps, and bytes of their JSON
KEPT = 3600  # seconds for which a stream is kept after its last event, unless its job has a longer result_ttl
PATIENCE = 2.0  # seconds that a call may wait for the server
ENDING = 0.2  # the same at the end of a job
AGAIN = 0.25  # seconds between two tries while the server is unreachable


class Attempt:
    """base: the number before its first event, -1: unknown. count: of all events. unsent: position in the attempt and JSON;
    size: bytes of these."""

    def __init__(self, id: str, ttl: int) -> None:
        self.id, self.ttl = id, ttl
        self.base, self.count, self.size = -1, 0, 0
        self.unsent = deque[tuple[int, bytes]]()

    def args(self, mark: str, sent: list[tuple[int, bytes]]) -> list[Arg]:
        """For emit.lua."""
        return [mark, self.base, self.ttl, MOST_EVENTS, MOST_BYTES, *[word for event in sent for word in event]]


class Emitter:
    """opened: returns the connection of the thread that calls it. attempts: by mark, those that have emitted and are not
    settled."""

    def __init__(self, opened: Callable[[], Connector], log: Log) -> None:
        self._opened, self._log = opened, log
        self.lock = threading.Condition()  # reentrant: a signal handler of a job may emit during an emit
        self.attempts = dict[str, Attempt]()
        self._filled, self._urgent = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def add(self, mark: str, id: str, ttl: float | None, data: bytes) -> None:
        """Collect an event of the attempt `mark`. The caller has the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="qd-events", daemon=True)
            thread.start()
            self._thread = thread
        attempt = self.attempts.get(mark) or self.attempts.setdefault(mark, Attempt(id, max(KEPT, round(ttl or 0))))
        attempt.count, attempt.size = attempt.count + 1, attempt.size + len(data)
        attempt.unsent.append((attempt.count, data))
        while len(attempt.unsent) > MOST_EVENTS or attempt.size > MOST_BYTES:
            attempt.size -= len(attempt.unsent.popleft()[1])
            self._dropped += 1
        self._filled.set()
        if len(attempt.unsent) >= FULL:
            self._urgent.set()

    def end(self, mark: str) -> Attempt:
        """The attempt has ended: wait until its events are sent. Raises NoAnswer: call it again."""
        with self.lock:
            attempt = self.attempts[mark]
            if attempt.unsent:
                self._urgent.set()
            if not self.lock.wait_for(lambda: not attempt.unsent, ENDING):
                raise NoAnswer("the events of the job are not sent yet")
            return self.attempts.pop(mark)

    def _serve(self) -> None:
        """The thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        while self._filled.wait():
            self._urgent.wait(COLLECT)
            self._filled.clear()
            self._urgent.clear()
            with self.lock:
                some = [
                    (mark, each, [*islice(each.unsent, SENT)]) for mark, each in self.attempts.items() if each.unsent
                ]
            replies = self._send([(each.id, each.args(mark, sent)) for mark, each, sent in some])
            with self.lock:
                away = [reply for each, reply in zip(some, replies, strict=True) if not self._noted(*each[1:], reply)]
                self.lock.notify_all()
                if any(each.unsent for _, each, _ in some):
                    self._filled.set()
            if away:
                self._log.debug("job.emit", kept="in memory", error=str(away[0]))
                time.sleep(AGAIN)

    def _send(self, some: list[tuple[str, list[Arg]]]) -> list[object]:
        try:
            queue = self._opened()
            with queue.within(PATIENCE):
                return queue.jobs.emit(some)
        except Exception as error:  # others than ConnectionLost: this connection keeps no events
            return [error] * len(some)

    def _noted(self, attempt: Attempt, sent: list[tuple[int, bytes]], reply: object) -> bool:
        """These events were sent. reply: their base, or an error. False: they must be sent again."""
        if isinstance(reply, ConnectionLost):
            return False
        while attempt.unsent and attempt.unsent[0][0] <= sent[-1][0]:
            attempt.size -= len(attempt.unsent.popleft()[1])
            self._dropped += isinstance(reply, Exception)
        if isinstance(reply, bytes):
            attempt.base = int(reply)
        if self._dropped:
            reason = str(reply) if isinstance(reply, Exception) else "the server was unreachable for too long"
            self._log.warning("job.events_dropped", count=self._dropped, reason=reason)
            self._dropped = 0
        return True
