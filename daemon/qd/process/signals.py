"""Signals as bytes in a mailbox. A handler does nothing but let C write the signal's number; loops read it.

Raising from a handler would be swallowed by a library or lose a reply on its way. The one handler that may raise is the
worker's SIGALRM (worker/timeout.py), and only inside user code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
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
KEPT = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)  # a fault stays a fault


class Mailbox:
    """`open` installs, `close` puts everything back. One a process, made in its main thread."""

    def __init__(self) -> None:
        self.arrived = False  # a cheap look for hot loops; `read` empties it
        self.heard: Callable[[int], None] | None = None  # told at once; it may set a flag, and nothing else
        self._read = self._write = -1
        self._pipe: Identity | None = None  # of both ends
        self._old: dict[int, object] = {}
        self._handler = self._note  # one object, to be known again

    @property
    def fd(self) -> int:
        """Readable when a signal has come: for poll and for blocking calls that watch it."""
        return self._read

    def open(self, signals: Iterable[signal.Signals]) -> None:
        self._open_pipe()
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in signals:
            self._old[number] = signal.signal(number, self._handler)

    def _open_pipe(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        self._pipe = identity(self._read)

    def renew(self) -> bool:
        """After foreign code, before `mend`: a new pipe where that code has closed ours. True: it had."""
        if identity(self._write) == identity(self._read) == self._pipe:
            return False
        for fd in (self._read, self._write):
            descriptors.close(fd, self._pipe)
        self._open_pipe()
        return True

    def mend(self) -> bool:
        """After foreign code: take handlers and wakeup descriptor back. True: they were not ours, a signal may be lost."""
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
        """The signals since the last read, in their order. Never blocks."""
        self.arrived = False
        try:
            return list(os.read(self._read, 4096))
        except BlockingIOError:
            return []

    def wait(self, seconds: float | None, *others: int) -> list[int]:
        """Sleep until a signal comes, one of `others` is readable, or `seconds` are over. Returns the signals."""
        poll = select.poll()
        for fd in (self._read, *others):
            poll.register(fd, select.POLLIN)
        poll.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.999)))
        return self.read()

    def peek(self, seconds: float) -> None:
        """Sleep until a signal comes or `seconds` are over; what has come is still to be read."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.poll(max(0, int(seconds * 1000 + 0.999)))

    def post(self, number: int) -> None:
        """As if the signal had come."""
        self.arrived = True
        os.write(self._write, bytes([number]))

    def forget(self) -> None:
        """In a forked child: close the parent's pipe, leave the handlers alone (`deaf` has replaced them)."""
        for fd in (self._read, self._write):
            os.close(fd)
        self._read = self._write = -1
        self._old.clear()

    def leave(self) -> None:
        """Close it in a program whose end is settled: a late signal changes neither that nor the exit code. (A handler of
        Python's would be taken away by the interpreter's own end; what is ignored stays so.)"""
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
        for fd in (self._read, self._write):
            descriptors.close(fd, self._pipe)
        self._read = self._write = -1
        self._old.clear()


def nothing(number: int, frame: FrameType | None) -> None:
    """A handler for signals that mean nothing here. Not SIG_IGN: exec would hand that on to a job's subprocess."""


def default_all(*quiet: signal.Signals) -> None:
    """What a copy of a worker does that a job has forked: no handler, no wakeup descriptor, no blocked signal of ours."""
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for number in ALL:
        if number not in KEPT:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for deaf_to in quiet:
        signal.signal(deaf_to, nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # last: what came meanwhile meets the handlers above


SOON = 0.001  # seconds until an alarm that came around a fork comes again


class Copies:
    """Copies of a worker that its jobs fork: no signal reaches one before it has the default handlers.

    Else a SIGTERM, as a multiprocessing pool sends it at its end, would be swallowed by the worker's handler, and would
    stand in the worker's mailbox. Nor does an alarm raise around a fork: Python swallows what is raised there.
    """

    def __init__(self) -> None:
        self._forking = threading.local()

    def guard(self) -> None:
        """From now on, for the rest of this process's life."""
        os.register_at_fork(before=self._before, after_in_parent=self._after, after_in_child=self._copied)

    def _before(self) -> None:
        shield.__enter__()
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ALL)

    def _after(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)
        if shield.put_down():
            signal.setitimer(signal.ITIMER_REAL, SOON)

    def _copied(self) -> None:
        shield.depth, shield.overdue = 0, None
        default_all()


STEERING = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGCONT),
)


def deaf(*more: signal.Signals) -> None:
    """What a child of ours does first: forget the parent's handlers; signals that steer masters and workers do nothing.

    A supervisor may send them to the whole group while this child boots, and their default would end or stop it.
    """
    default_all(*STEERING, *more)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends
