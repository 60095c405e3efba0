"""One event, one line, one write: `2026-11-21 12:00:01.204+00:00 ERROR worker[415] job.failed queue=default job=mail`.

The time is local, with its offset from UTC: a framework may set another zone in workers than the master has. Or one JSON
object a line, in UTC. Control characters are escaped, so that no payload can forge a line; secrets are masked. Whoever
must never wait for a slow reader (master, keeper) writes through `Unblocked`, which drops what does not fit, and counts;
workers wait a while first (`Patient`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import socket
import stat
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

from qd.process.descriptors import identity
from qd.redaction import redact
from qd.traces import shown

PATIENCE = 3.0  # seconds that a worker waits for whoever reads its lines
DROPPED = b"log: %d lines dropped, nobody reads stderr fast enough\n"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
PLAIN = re.compile(r"[\w.,:;/@+*%#$!?<>()\[\]{}|^~\\-]+", re.ASCII)  # what needs no quotes; no space, no "=", no quote


class Write(Protocol):
    def __call__(self, line: bytes, /) -> None: ...


def to_stderr(line: bytes) -> None:
    """Whole lines, waiting for a slow reader. A reader that is gone is no reason to fail."""
    try:
        while line:
            line = line[os.write(2, line) :]
    except OSError:
        pass


class Unblocked:
    """Writes to stderr without ever waiting. `dropped` counts the lines that found no room.

    O_NONBLOCK on the inherited descriptor would be shared with every other process that has it, so a pipe or terminal is
    opened anew; a socket is asked not to wait at each send; a file never blocks.
    """

    def __init__(self, fd: int = 2) -> None:
        self.dropped = 0
        self._stderr = fd
        self._open()

    def _open(self) -> None:
        fd = self._fd = self._stderr
        self._socket: socket.socket | None = None
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif not stat.S_ISREG(mode):
                self._fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # stderr closed, or another user's: then ask for room before each write
        self._file = identity(self._held)

    @property
    def _held(self) -> int:
        """The descriptor that is written to."""
        return self._fd if self._socket is None else self._socket.fileno()

    def __call__(self, line: bytes) -> None:
        if self.dropped and self._send(DROPPED % self.dropped):
            self.dropped = 0
        if not self._send(line):
            self.dropped += 1

    def _send(self, line: bytes) -> bool:
        try:
            if self._socket is not None:
                return self._socket.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) > 0
            poll = select.poll()  # not select: the descriptor may be beyond 1024
            poll.register(self._fd, select.POLLOUT)
            if not poll.poll(0):
                return False
            return os.write(self._fd, line) > 0
        except (OSError, ValueError):
            return False


class WaitingLogWriter(Unblocked):
    """Waits for a slow reader, but not for ever. After a line that found none it drops at once, until there is room."""

    def __call__(self, line: bytes) -> None:
        until = time.monotonic() + PATIENCE
        if identity(self._held) != self._file:
            self._open_again()
        if self.dropped and self._send(DROPPED % self.dropped):
            self.dropped = 0
        while line and not self.dropped:
            try:
                if not self._writable(until - time.monotonic()):
                    break
                line = line[self._some(line) :]
            except BlockingIOError:
                continue  # another worker was quicker
            except OSError:
                return  # a reader that is gone is no reason to fail
        self.dropped += bool(line)

    def _open_again(self) -> None:
        """A job has closed our descriptor. Its number may be another file's by now, and that takes no line of ours."""
        if self._socket is not None:
            self._socket.detach()
        self._open()

    def _writable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(max(0, seconds) * 1000))

    def _some(self, line: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self._fd, line)


class Log:
    """role: "master", "worker" ...; the pid is asked at each line, so that a fork needs no care."""

    def __init__(self, role: str, *, format: str = "text", level: str = "info", write: Write = to_stderr) -> None:
        self.role, self.write = role, write
        self.tune(format, level)

    def tune(self, format: str, level: str) -> None:
        self.format, self.level = format, level
        self.least = LEVELS[level]
        self.informs = self.least <= 20  # for hot paths: ask before building fields
        self.debugs = self.least <= 10

    def of(self, role: str, write: Write | None = None) -> Log:
        """The same log for another role."""
        return Log(role, format=self.format, level=self.level, write=write or self.write)

    def tuned(self, format: str, level: str) -> Log:
        """The same log as another configuration wants it."""
        return Log(self.role, format=format, level=level, write=self.write)

    def debug(self, event: str, **fields: object) -> None:
        self.line("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self.line("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self.line("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self.line("error", event, fields)

    def line(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        if LEVELS[level] < self.least:
            return
        make = as_json if self.format == "json" else as_text
        line = redact(make(time.time(), level, self.role, event, fields))
        self.write(line.encode("utf-8", "backslashreplace"))


def as_text(at: float, level: str, role: str, event: str, fields: Mapping[str, object]) -> str:
    """Fields that are None are left out; `trace` stands under the line, indented."""
    clock, offset = local(int(at))
    parts = [f"{key}={quoted(value)}" for key, value in fields.items() if value is not None and key != "trace"]
    moment = f"{clock}.{int(at * 1000) % 1000:03d}{offset}"
    line = " ".join([moment, level.upper().ljust(5), f"{role}[{os.getpid()}]", event, *parts]) + "\n"
    trace = fields.get("trace")
    return line + (
        "".join(f"    {escaped(row.expandtabs())}\n" for row in str(trace).rstrip().splitlines()) if trace else ""
    )


def as_json(at: float, level: str, role: str, event: str, fields: Mapping[str, object]) -> str:
    clock = f"{utc(int(at))}.{int(at * 1000) % 1000:03d}Z"
    kept = {"child" if key == "pid" else key: value for key, value in fields.items() if value is not None}
    head = {"time": clock, "level": level, "role": role, "pid": os.getpid(), "event": event}
    return json.dumps(head | kept, ensure_ascii=True, default=str).replace("\x7f", "\\u007f") + "\n"


@lru_cache(1)  # a second has many lines
def local(second: int) -> tuple[str, str]:
    """The time, and its offset from UTC: "+05:30"."""
    there = time.localtime(second)
    offset = time.strftime("%z", there)
    return time.strftime("%Y-%m-%d %H:%M:%S", there), f"{offset[:3]}:{offset[3:5]}"


@lru_cache(1)
def utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if PLAIN.fullmatch(text) else '"' + escaped(text).replace('"', '\\"') + '"'


def cut(text: str, most: int = 100) -> str:
    """What came from a payload, for a line: as much as a reader needs of it."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def escaped(text: str) -> str:
    """Control characters, and what turns text around, as \\xNN: for log lines and tables."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class JobRecords(logging.Handler):
    """Python's own logging inside a worker: records become lines of this log, with job and id of the job in hand."""

    def __init__(self, log: Log, context: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._log, self._context = log, context

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._emit(record)
        except Exception:  # a record that cannot be formatted is not the job's failure
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        level = next((name for name, least in reversed(LEVELS.items()) if record.levelno >= least), "debug")
        error = record.exc_info[1] if record.exc_info else None
        trace = None if error is None else shown(error, whole=self._log.debugs)
        fields = {"logger": record.name, "message": record.getMessage(), **self._context(), "trace": trace}
        self._log.line(level, "log", fields)


def carry_job(context: Callable[[], Mapping[str, object]]) -> None:
    """Put the fields of the job in hand on every log record, whoever formats it (`%(job)s`, `%(job_id)s`).

    Not by a record factory: logging refuses an `extra` whose key a factory has set, and `extra={"job": ...}` is the app's
    good right, and wins.
    """
    plain = logging.Logger.makeRecord
    if hasattr(plain, "carries_job"):
        return

    def make(logger: logging.Logger, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = plain(logger, *args, **kwargs)
        record.__dict__ = {"job": None, "job_id": None, **context(), **record.__dict__}
        return record

    make.carries_job = True  # type: ignore[attr-defined]
    logging.Logger.makeRecord = make  # type: ignore[method-assign,assignment]
