"""A shell line or a command of qd's as a subprocess of its run, and the last that it wrote to stderr."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from qd.config import Settings
from qd.log import cut
from qd.masks import masked
from qd.process import child
from qd.process.exits import signal_name
from qd.schedule import QdTask, ShellTask

KEPT = 4096  # bytes of what it wrote last
LINE = 250  # characters of its last line that are told
LOOK = 100  # ms between two looks whether it has ended, where no descriptor tells


def words_of(task: ShellTask | QdTask, settings: Settings) -> list[str]:
    """What is executed. A command of qd's reads the configuration that the scheduler has read."""
    if isinstance(task, ShellTask):
        return ["/bin/sh", "-c", task.line]
    config = ["--config", str(settings.file)] if settings.file else []
    app = ["--app", settings.app] if settings.app else []
    return [sys.executable, "-m", "qd", *config, *app, *task.words]


def run(words: Sequence[str], written: bool) -> tuple[int, str]:
    """Run it to its end. written: stderr is a file of the entry's own (output_to), and is read from there; else it passes
    through here. Returns its exit code, below 0 a signal, and how it failed, "" when it did not. Raises OSError."""
    start = file_end() if written else 0
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stderr=None if written else subprocess.PIPE,
        preexec_fn=partial(child.die_with, os.getpid()),  # whatever kills this run kills the command, too
    )
    last = b"" if process.stderr is None else passed_on(process, process.stderr.fileno())
    code = process.wait()
    return code, how(code, read_from(start) if written else last)


def how(code: int, last: bytes) -> str:
    if not code:
        return ""
    said = last_line(last)
    ended = f"exit code {code}" if code > 0 else f"signal {-code} ({signal_name(-code)})"
    return f"{ended}: {said}" if said else ended


def last_line(text: bytes) -> str:
    lines = [line.strip() for line in masked(text.decode("utf-8", "replace")).splitlines()]
    return cut(next((line for line in reversed(lines) if line), ""), LINE)


def file_end() -> int:
    with suppress(OSError):
        return os.lseek(2, 0, os.SEEK_END)
    return 0


def read_from(start: int) -> bytes:
    """The end of the file that stderr is, no further back than `start`. What cannot be read says nothing."""
    with suppress(OSError):
        size = os.fstat(2).st_size
        path = os.open("/dev/fd/2", os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(path, KEPT, max(start, size - KEPT))
        finally:
            os.close(path)
    return b""


def passed_on(process: subprocess.Popen[bytes], pipe: int) -> bytes:
    """Hand on to stderr what the process writes there, until it has ended. Returns the last of it."""
    last, ended = b"", pid_descriptor(process.pid)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(None if ended is not None else LOOK)]
        if pipe in ready:
            part = os.read(pipe, 65536)
            if not part:
                return last
            write_all(part)
            last = (last + part)[-KEPT:]
        elif process.poll() is not None:
            pass_on_later(pipe)
            return last


def pid_descriptor(pid: int) -> int | None:
    """Readable when the process has ended. None: this kernel has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def pass_on_later(pipe: int) -> None:
    """The command has ended and has left something running that still may write: a copy of this process goes on handing that
    on, so that it is not ended by a closed pipe."""

    def go_on() -> int:
        while part := os.read(pipe, 65536):
            write_all(part)
        return 0

    with suppress(OSError):
        child.fork(go_on, own_group=False, die_with_parent=False)


def write_all(part: bytes) -> None:
    with suppress(OSError):
        while part:
            part = part[os.write(2, part) :]
