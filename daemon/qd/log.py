"""One event, one line, one write: `2026-11-21 12:00:01.204+00:00 ERROR worker[415] job.failed queue=default job=mail`.

Times are local with their offset from UTC, because a framework may set another zone in workers; or JSON, one object per
line, in UTC. Control characters are escaped, so that no payload can forge a line, and secrets are redacted.

    to_stderr           waits for a slow reader
    WaitingLogWriter    waits up to three seconds, then drops lines (workers)
    Unblocked           never waits; drops and counts the lines that do not fit (master, keeper)
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
from typing import Any

from qd.process.descriptors import identity
from qd.redaction import redact
from qd.traces import shown

DROPPED = b"log: %d lines dropped, stderr is not read fast enough\n"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
PLAIN = re.compile(r"[\w.,:;/@+*%#$!?<>()\[\]{}|^~\\-]+", re.ASCII)  # needs no quotes: contains no space, "=" or quote

Write = Callable[[bytes], None]


def to_stderr(line: bytes) -> None:
    """Write the whole line, or several, waiting for a slow reader. A closed stderr is ignored."""
    try:
        while line:
            line = line[os.write(2, line) :]
    except OSError:
        pass


class Unblocked:
    """Writes to stderr, waiting up to `patience` seconds for a slow reader. After a line that did not fit it drops lines at
    once until there is room. `dropped` counts them.

    O_NONBLOCK on the inherited descriptor would affect every process that shares it. A pipe or terminal is therefore
    opened again, a socket gets MSG_DONTWAIT with each send, and a regular file never blocks.
    """

    patience = 0.0

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
            pass  # stderr is closed or belongs to another user: write to it after a poll
        self._file = identity(self._current_fd)

    @property
    def _current_fd(self) -> int:
        return self._fd if self._socket is None else self._socket.fileno()

    def __call__(self, line: bytes) -> None:
        until = time.monotonic() + self.patience
        if identity(self._current_fd) != self._file:  # a job closed our descriptor; its number may be another file now
            if self._socket is not None:
                self._socket.detach()
            self._open()
        if self.dropped and self._send(DROPPED % self.dropped):
            self.dropped = 0
        while line and not self.dropped:
            try:
                if not (sent := self._write(line, max(0.0, until - time.monotonic()))):
                    break
                line = line[sent:]
            except BlockingIOError:  # another process has filled the pipe
                if time.monotonic() >= until:
                    break
            except OSError:
                return  # the reader is gone
        self.dropped += bool(line)

    def _send(self, line: bytes) -> bool:
        try:
            return self._write(line) > 0
        except (OSError, ValueError):
            return False

    def _write(self, line: bytes, seconds: float = 0.0) -> int:
        """Returns how many bytes it wrote; 0: there was no room within `seconds`. Raises OSError."""
        poll = select.poll()  # not select: the descriptor may be beyond 1024
        poll.register(self._fd, select.POLLOUT)
        if not poll.poll(seconds * 1000):
            return 0
        if self._socket is not None:
            return self._socket.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self._fd, line)


class WaitingLogWriter(Unblocked):
    patience = 3.0


class Log:
    """role: "master", "worker", ... The pid is read for each line, so a fork needs no special care."""

    def __init__(
        self, role: str, *, format: str = "text", level: str = "info", jobs: str = "all", write: Write = to_stderr
    ) -> None:
        self.role, self.write = role, write
        self.tune(format, level, jobs)

    def tune(self, format: str, level: str, jobs: str = "all") -> None:
        """jobs: which jobs have a line when they end, see log_jobs of [worker]."""
        self.format, self.level, self.jobs, self.least = format, level, jobs, LEVELS[level]
        self.logs_done = self.least <= 20 and jobs == "all"  # for the hot path: checked before fields are built
        self.logs_ends = jobs != "off"
        self.debugs = self.least <= 10

    def of(self, role: str, write: Write | None = None) -> Log:
        """The same log for another role."""
        return Log(role, format=self.format, level=self.level, jobs=self.jobs, write=write or self.write)

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
    """Fields that are None are omitted; `trace` follows the line, indented."""
    clock, offset = local(int(at))
    parts = [f"{key}={quoted(value)}" for key, value in fields.items() if value is not None and key != "trace"]
    moment = f"{clock}.{int(at * 1000) % 1000:03d}{offset}"
    line = " ".join([moment, level.upper().ljust(5), f"{role}[{os.getpid()}]", event, *parts]) + "\n"
    trace = str(fields.get("trace") or "").rstrip().splitlines()
    return line + "".join(f"    {escaped(row.expandtabs())}\n" for row in trace)


def as_json(at: float, level: str, role: str, event: str, fields: Mapping[str, object]) -> str:
    clock = f"{utc(int(at))}.{int(at * 1000) % 1000:03d}Z"
    kept = {"child" if key == "pid" else key: value for key, value in fields.items() if value is not None}
    head = {"time": clock, "level": level, "role": role, "pid": os.getpid(), "event": event}
    return json.dumps(head | kept, ensure_ascii=True, default=str).replace("\x7f", "\\u007f") + "\n"


@lru_cache(1)  # many lines share a second
def local(second: int) -> tuple[str, str]:
    """The time and its offset from UTC, such as "+05:30"."""
    at = time.localtime(second)
    offset = time.strftime("%z", at)
    return time.strftime("%Y-%m-%d %H:%M:%S", at), f"{offset[:3]}:{offset[3:5]}"


@lru_cache(1)
def utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if PLAIN.fullmatch(text) else '"' + escaped(text).replace('"', '\\"') + '"'


def cut(text: str, most: int = 100) -> str:
    """At most `most` characters of a text from a payload, for a log line."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def encodable(text: str) -> str:
    """Replace lone surrogates by \\udNNN, because UTF-8 and JSON cannot carry them. Texts of user code may have some, for
    example from a file name."""
    return text.encode("utf-8", "backslashreplace").decode()


def escaped(text: str) -> str:
    """Replace unprintable characters (control characters, text direction marks) by \\xNN, for log lines and tables."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Attributes of every record, and the words with which a line begins; all others come from `extra` or OpenTelemetry.
OWN = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "time", "level", "role", "pid", "event"}


class JobRecords(logging.Handler):
    """Python's own logging in a worker: records become lines of this log, with what `extra` gave and the fields of the
    running job."""

    def __init__(self, log: Log, context: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._log, self._context = log, context

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = next((name for name, least in reversed(LEVELS.items()) if record.levelno >= least), "debug")
            error = record.exc_info[1] if record.exc_info else None
            trace = None if error is None else shown(error, whole=self._log.debugs)
            ids = {"trace_id": getattr(record, "otelTraceID", None), "span_id": getattr(record, "otelSpanID", None)}
            extra = {key: it for key, it in record.__dict__.items() if key not in OWN and not key.startswith("otel")}
            fields = {"logger": record.name, "message": record.getMessage(), **self._context(), **ids}
            self._log.line(level, "log", fields | extra | fields | {"trace": trace})
        except Exception:  # a record that cannot be formatted must not fail the job
            self.handleError(record)


def carry_job(context: Callable[[], Mapping[str, object]]) -> None:
    """Add the fields of the running job to every log record, for any formatter (`%(job)s`, `%(job_id)s`). A record factory
    cannot do this: logging refuses an `extra` whose key a factory has set, and `extra={"job": ...}` of the app must be
    allowed and must win."""
    plain = logging.Logger.makeRecord
    if hasattr(plain, "carries_job"):
        return

    def make(logger: logging.Logger, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = plain(logger, *args, **kwargs)
        record.__dict__ = {"job": None, "job_id": None, **context(), **record.__dict__}
        return record

    make.carries_job = True  # type: ignore[attr-defined]
    logging.Logger.makeRecord = make  # type: ignore[method-assign,assignment]
