"""stdout and stderr of a command: a closed pipe, a full disk or a closed descriptor must not change its exit code.

If `qd dispatch` sent its job and then failed because it could not print the id, a script would send the job again.

    closed when qd started     the descriptor is opened on /dev/null, so that no socket gets its number
    a write that fails         the rest of the output is dropped; one line on stderr says why (a closed pipe: none)
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDOUT, STDERR = 1, 2
CLOSED = (errno.EPIPE, errno.EBADF)  # whoever read the output has left, or nobody was meant to read it


def guard() -> None:
    """For the entry point of `qd`, once, before anything is opened."""
    _open_standard_descriptors()
    sys.stdout = guarded(sys.stdout, STDOUT, "<stdout>")
    sys.stderr = guarded(sys.stderr, STDERR, "<stderr>")


def _open_standard_descriptors() -> None:
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


def guarded(stream: TextIO | None, fd: int, name: str) -> TextIO:
    """A stream like this one whose writes do not fail in this process. None: Python started without the descriptor."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8", errors="replace")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    sink = Sink(fd, name)
    buffer = sink if stream.write_through else io.BufferedWriter(sink)
    return io.TextIOWrapper(
        buffer,  # with -u none, as Python's own stream
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class Sink(io.FileIO):
    """A descriptor that takes every byte. A process that this one forks sees errors as usual: a job's print() is not a
    command's result."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "wb", closefd=False)
        self.name = name
        self._pid = os.getpid()
        self._lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        ours = os.getpid() == self._pid
        if self._lost and ours:
            return memoryview(data).nbytes
        try:
            while (taken := super().write(data)) is None and ours:  # non-blocking, and full
                select.select((), (self,), ())
            return taken  # None in a process that was forked, as io.FileIO
        except OSError as error:
            if not ours:
                raise
            self._lost = True
            if self.fileno() != STDERR and error.errno not in CLOSED:
                told(f"qd: {self.name.strip('<>')}: {error.strerror}; the rest of the output is lost")
            return memoryview(data).nbytes


def told(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{line}\n".encode())


def flush(streams: Iterable[TextIO | None]) -> None:
    """Before this process becomes another program. None: Python started without the descriptor."""
    for stream in streams:
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()
