"""Sends what jobs emit, in one thread for all jobs of a worker, which the first event starts.

    job.emit -> Emitter.add: collected -> after 50 ms, or 64 events of one job -> one round trip, emit.lua for each job
    the attempt has ended -> Emitter.end: sent at once -> then the job is settled

While the server is unreachable, events wait in memory. A call that may have been executed is repeated: see emit.lua.
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
from qd.errors import ConnectionLost, NoAnswer, ServerRefused
from qd.log import Log

MOST_EVENTS, MOST_BYTES = 1000, 1 << 20  # that a stream keeps, and bytes of their JSON
KEPT = 3600  # seconds for which a stream is kept after its last event, unless its job has a longer result_ttl
COLLECT, FULL = 0.05, 64  # seconds; events of one job that are sent without waiting
SENT = 250  # events of one job in a call
PATIENCE, ENDING = 2.0, 0.2  # seconds that a call may wait for the server, and that the end of a job waits for a call
AGAIN = 0.25  # seconds between two tries while the server is unreachable


class OpenStream:
    """base: the number before its first event, -1: unknown. count: of all events. unsent: position in the attempt and JSON.
    sent: the last position sent."""

    def __init__(self, id: str, ttl: int) -> None:
        self.id, self.ttl, self.base, self.count, self.sent = id, ttl, -1, 0, 0
        self.unsent = deque[tuple[int, bytes]](maxlen=MOST_EVENTS)

    def args(self, mark: str, sent: list[tuple[int, bytes]]) -> list[Arg]:
        return [mark, self.base, self.ttl, MOST_EVENTS, MOST_BYTES, *[word for event in sent for word in event]]


class Emitter:
    """opened: returns the connection of its thread. attempts: by mark, those that have emitted and are not settled."""

    def __init__(self, opened: Callable[[], Connector], log: Log) -> None:
        self._opened, self._log = opened, log
        self.lock = threading.Condition()  # reentrant: a signal handler of a job may emit during an emit
        self.attempts = dict[str, OpenStream]()
        self._filled, self._urgent = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, mark: str, id: str, ttl: float | None, data: bytes) -> None:
        """Collect an event of the attempt `mark`. The caller has the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="qd-events", daemon=True)
            thread.start()
            self._thread = thread
        stream = self.attempts.get(mark) or self.attempts.setdefault(mark, OpenStream(id, max(KEPT, round(ttl or 0))))
        stream.count += 1
        stream.unsent.append((stream.count, data))
        self._filled.set()
        if len(stream.unsent) >= FULL:
            self._urgent.set()

    def end(self, mark: str) -> OpenStream:
        """The attempt has ended: wait until its events are sent. Raises NoAnswer: call it again."""
        with self.lock:
            stream = self.attempts[mark]
            self._urgent.set()
            if not self.lock.wait_for(lambda: not stream.unsent, ENDING):
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
                some = [(mark, one, [*islice(one.unsent, SENT)]) for mark, one in self.attempts.items() if one.unsent]
            replies: list[object]
            try:
                queue = self._opened()
                with queue.within(PATIENCE):
                    replies = queue.jobs.emit([(each.id, each.args(mark, sent)) for mark, each, sent in some])
            except Exception as error:  # others than ConnectionLost: this connection keeps no events
                replies = [error] * len(some)
            with self.lock:
                for (_, each, sent), reply in zip(some, replies, strict=True):
                    self._note(each, sent, reply)
                self.lock.notify_all()
                if any(each.unsent for _, each, _ in some):
                    self._filled.set()
            if any(isinstance(reply, ConnectionLost) for reply in replies):
                time.sleep(AGAIN)

    def _note(self, stream: OpenStream, sent: list[tuple[int, bytes]], reply: object) -> None:
        """These events were sent. reply: their base, or an error."""
        if isinstance(reply, ConnectionLost):
            return self._log.debug("job.emit", kept="in memory", error=str(reply))
        if isinstance(reply, bytes) and not reply.isdigit():
            reply = ServerRefused("the stream of its events contains what qd did not write")
        refused = isinstance(reply, Exception)
        if dropped := sent[0][0] - stream.sent - 1 + len(sent) * refused:
            reason = str(reply) if refused else "the server was unreachable for too long"
            self._log.warning("job.events_dropped", id=stream.id, count=dropped, reason=reason)
        stream.sent, stream.base = sent[-1][0], int(reply) if isinstance(reply, bytes) else stream.base
        while stream.unsent and stream.unsent[0][0] <= stream.sent:
            stream.unsent.popleft()
