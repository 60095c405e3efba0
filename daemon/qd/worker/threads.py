"""The threads of a worker with several jobs, and what they do for each other.

JobPool     qd-job_N   run what is sync in jobs
Inbox       qd-io      owns the connection: other threads wake it, and have it call the server for them
TokenWait   qd-wait    waits for a token over a connection of its own, so that answers never wait
Deadlines   qd-watch   ends jobs on time, also while qd-io waits for the server; passes signals on
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from qd.drivers.base import Connector
from qd.errors import ConnectionLost, NoAnswer
from qd.process.descriptors import ready_of
from qd.process.scoreboard import L, Why, now
from qd.process.signals import Mailbox
from qd.worker.connection import AWAY

if TYPE_CHECKING:
    from qd.worker.lanes import LaneRun

T = TypeVar("T")
WAKE = 0  # the byte in the mailbox that is no signal
BROKEN = 0.5  # seconds until a broken wait for a token is tried again
FAR = 2**63
LOOK_NS = 1_000_000_000  # between two looks of qd-watch at the deadlines, at most
AGAIN_NS = 100_000_000  # until a job that has not ended is ended again


def started(name: str, act: Callable[[], None]) -> threading.Thread:
    """A daemon thread: one that hangs does not keep the worker."""
    thread = threading.Thread(target=act, name=name, daemon=True)
    thread.start()
    return thread


class JobPool:
    """Starts threads when they are needed, and keeps them."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, "qd-job")
        self._pool.submit(lambda: None)  # starts the first thread, or raises

    def submit(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # no more threads are allowed: the others run it
            self._pool.submit(act)


class Inbox:
    """What other threads want of the thread that owns the connection. Any thread may call `wake`, `call` and `post`."""

    def __init__(self, queue: Connector) -> None:
        self.queue = queue
        self.thread = 0  # that owns the connection
        self._calls = deque[tuple[Future[Any] | None, Callable[[], Any], float]]()
        self._woken = False
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """End its sleep: something has changed."""
        if not self._woken:
            self._woken = True
            with suppress(BlockingIOError):
                os.write(self._write, b"!")

    def call(self, act: Callable[[], T], seconds: float) -> T:
        """The result of `act`, called in that thread. Raises NoAnswer if it has not begun after so many seconds."""
        if threading.get_ident() == self.thread:
            with self.queue.within(seconds):
                return act()
        future = Future[T]()
        self._calls.append((future, act, seconds))
        self.wake()
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                return future.result()
            future.cancel()
            raise NoAnswer("the worker's connection is busy") from None

    def post(self, act: Callable[[], None]) -> None:
        """Have `act` called in that thread later."""
        self._calls.append((None, act, 0.0))
        self.wake()

    # -- in the thread that owns the connection

    @property
    def filled(self) -> bool:
        return bool(self._calls)

    def sleep(self, seconds: float) -> None:
        """Sleep until something has changed."""
        if not self._woken:
            ready_of((self._read,), seconds)
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        self._woken = False

    def serve(self, *, away: bool = False) -> None:
        """Make the calls. away: the server is unreachable, so calls fail, and posted ones stay."""
        while self._calls and not (away and self._calls[0][0] is None):
            future, act, seconds = self._calls.popleft()
            if future is None:
                act()
            elif future.set_running_or_notify_cancel():
                try:
                    if away:
                        raise ConnectionLost("the server is unreachable")
                    with self.queue.within(seconds):
                        future.set_result(act())
                except BaseException as error:
                    future.set_exception(error)


class TokenWait:
    """came: called in this thread when a job may be ready."""

    def __init__(self, queue: Connector, came: Callable[[], None]) -> None:
        self.queue, self._came = queue, came
        self.waits = False
        self.in_vain = True  # the last wait ended without a token
        self._begin = threading.Event()
        self._wake, self._stop = os.pipe()
        self._what: tuple[list[str], float] = ([], 0.0)

    def start(self, queues: list[str], seconds: float) -> None:
        self._what, self.waits = (queues, seconds), True
        self._begin.set()

    def stop(self) -> None:
        """End the wait: no job is wanted. A token that comes meanwhile is for another worker."""
        if self.waits:
            os.write(self._stop, b"!")

    def serve(self) -> None:
        """The thread."""
        while self._begin.wait():
            self._begin.clear()
            until = time.monotonic() + self._what[1]
            try:
                self.queue.wait(*self._what, self._wake)
            except AWAY:
                time.sleep(BROKEN)
            os.set_blocking(self._wake, False)
            with suppress(BlockingIOError):
                os.read(self._wake, 64)
            self.waits, self.in_vain = False, time.monotonic() >= until
            self._came()


class Deadlines:
    """busy: the lanes that have jobs. signalled: called with the signals that came, without SIGALRM."""

    def __init__(self, mailbox: Mailbox, busy: Mapping[int, LaneRun], signalled: Callable[[list[int]], None]) -> None:
        self.mailbox, self._busy, self._signalled = mailbox, busy, signalled
        self._nearest, self._lock = FAR, threading.Lock()
        self._wakes_at = 0
        self._over = False

    def expect(self, deadline: int) -> None:
        """Something with this deadline has begun."""
        with self._lock:
            self._nearest = min(self._nearest, deadline)
        if deadline < self._wakes_at:
            with suppress(BlockingIOError):
                self.mailbox.post(WAKE)

    def stop(self) -> None:
        self._over = True
        self.mailbox.post(WAKE)

    def serve(self) -> None:
        """The thread."""
        while not self._over:
            self._wakes_at = now() + LOOK_NS  # before the deadline is read: an earlier one wakes this thread
            self.mailbox.peek(min(LOOK_NS, max(0, self._nearest - now())) / 1e9)
            came = self.mailbox.read()
            if signal.SIGALRM in came:
                self._end_some()
            if others := [number for number in came if number not in (WAKE, signal.SIGALRM)]:
                self._signalled(others)
            if now() >= self._nearest:
                self._expire()

    def _end_some(self) -> None:
        """The master has noted in lanes why their jobs are to end."""
        for run in list(self._busy.values()):
            why = run.words[L.WHY]
            if why and why >> 8 == run.turn & 0xFFFFFFFF:
                run.words[L.WHY] = 0
                run.alarm.end(Why(why & 0xFF))

    def _expire(self) -> None:
        with self._lock:
            self._nearest = FAR
        at, nearest = now(), FAR
        for run in list(self._busy.values()):
            if deadline := run.alarm.deadline:
                if deadline <= at:
                    run.expire()
                    deadline = at + AGAIN_NS
                nearest = min(nearest, deadline)
        with self._lock:
            self._nearest = min(self._nearest, nearest)
