"""Signals as bytes in a mailbox: the interpreter writes the signal's number into a pipe, and the loops read it.

An exception raised by a handler could be swallowed by a library or lose a reply that is on its way. Only the worker's
SIGALRM handler (worker/timeout.py) raises, and only inside user code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal builds an enum member at each call, 8 us
from collections.abc import Callable, Iterable
from types import FrameType

from qd.process import descriptors
from qd.process.descriptors import Identity, identity
from qd.process.shield import shield

ALL = frozenset(s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP))
TAKE_STACK = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None  # a worker's fault handler writes its stack
KEPT = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)  # never reset to the default


class Mailbox:
    """`open` installs the handlers, `close` restores the old ones. One per process, created in its main thread."""

    def __init__(self) -> None:
        self.arrived = False  # a cheap check for hot loops; `read` resets it
        self.heard: Callable[[int], None] | None = None  # called by the handler; it may set a flag and nothing else
        self._read = self._write = -1
        self._pipe: Identity | None = None  # of both ends
        self._old: dict[int, object] = {}
        self._handler = self._note  # one object, to be recognized later

    @property
    def fd(self) -> int:
        """Readable when a signal has arrived: for poll and for blocking calls that watch it."""
        return self._read

    def open(self, signals: Iterable[signal.Signals]) -> None:
        self._open_pipe()
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in signals:
            self._old[number] = signal.signal(number, self._handler)

    def _open_pipe(self) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self._pipe = identity(self._read)
        with contextlib.suppress(OSError):  # on Linux, one descriptor for both ends: `renew` has only one to check
            both = os.open(f"/proc/self/fd/{self._read}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = both

    def _close_pipe(self) -> None:
        for fd in (self._read, self._write):
            descriptors.close(fd, self._pipe)
        self._read = self._write = -1

    def renew(self) -> bool:
        """After user code, before `repair`: open a new pipe if that code has closed it. True: it had."""
        if identity(self._write) == self._pipe and (self._read == self._write or identity(self._read) == self._pipe):
            return False
        self._close_pipe()
        self._open_pipe()
        return True

    def repair(self) -> bool:
        """After user code: restore handlers and wakeup descriptor. True: they had changed, so a signal may be lost."""
        taken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False) != self._write
        for number in self._old:
            if getsignal(number) is not self._handler:
                signal.signal(number, self._handler)
                taken = True
        return taken

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True
        if self.heard is not None:
            self.heard(number)

    def read(self) -> list[int]:
        """The signals since the last read, in order. Never blocks."""
        self.arrived = False
        try:
            return list(os.read(self._read, 4096))
        except BlockingIOError:
            return []

    def wait(self, seconds: float, *others: int) -> list[int]:
        """Sleep until a signal arrives, one of `others` is readable, or `seconds` have passed. Returns the signals."""
        self.peek(seconds, *others)
        return self.read()

    def peek(self, seconds: float, *others: int) -> None:
        """As `wait`, without reading the signals."""
        descriptors.ready_of((self._read, *others), seconds)

    def post(self, number: int) -> None:
        """Act as if the signal had arrived."""
        self.arrived = True
        os.write(self._write, bytes([number]))

    def forget(self) -> None:
        """In a forked child: close the parent's pipe. `deaf` has replaced the handlers already."""
        self._old.clear()
        self._close_pipe()

    def leave(self) -> None:
        """Close it in a program that is about to exit: a late signal must not change the exit code. (The interpreter
        removes Python handlers when it ends; ignored signals stay ignored.)"""
        for number in self._old:
            if number != signal.SIGCHLD:
                signal.signal(number, signal.SIG_IGN)
        self._old.clear()
        self.close()

    def close(self) -> None:
        if self._read < 0:
            return
        signal.set_wakeup_fd(-1)
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]
        self._old.clear()
        self._close_pipe()


def nothing(number: int, frame: FrameType | None) -> None:
    """A handler for signals without a meaning here. Not SIG_IGN: a job's subprocess would inherit that over exec."""


def default_all(*quiet: signal.Signals) -> None:
    """Reset handlers, wakeup descriptor and blocked signals. quiet: signals that do nothing instead of their default."""
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for number in ALL:
        if number not in KEPT:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for ignored in quiet:
        signal.signal(ignored, nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # last: pending signals meet the handlers above


SOON = 0.001  # seconds until an alarm that arrived during a fork is repeated


def guard_copies() -> None:
    """For the rest of this process's life, guard the copies of a worker that its jobs fork: no signal reaches one before it
    has the default handlers.

    Otherwise a SIGTERM, such as a multiprocessing pool sends when it ends, would be swallowed by the worker's handler and
    written to the worker's mailbox. Nor does an alarm raise during a fork: Python swallows exceptions raised there.
    """
    forking = threading.local()

    def before() -> None:
        shield.__enter__()
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ALL)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)
        if shield.put_down():
            signal.setitimer(signal.ITIMER_REAL, SOON)

    def copied() -> None:
        shield.depth, shield.overdue = 0, None
        default_all()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=copied)


STEERING = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGCONT),
)


def deaf(*more: signal.Signals) -> None:
    """First step of every child: drop the parent's handlers; signals that control masters and workers do nothing.

    A supervisor may send them to the whole group while the child boots, and their default would end or stop it.
    """
    default_all(*STEERING, *more)
