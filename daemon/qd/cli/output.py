"""What commands print: results on stdout, notes on stderr, tables for people, one JSON document for programs.

Text from a queue or an operator may contain anything: all lines are cleaned, so that no control character reaches the
terminal.

A closed pipe, a full disk or a closed descriptor must not change a command's exit code. If `qd dispatch` sent its job and
then failed because it could not print the id, a script would send the job again. `guard` sees to that:

    closed when qd started     the descriptor is opened on /dev/null, so that no socket gets its number
    a write that fails         the rest of the output is dropped; one line on stderr says why (a closed pipe: none)
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import select
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from qd.log import cut
from qd.options.kinds import count as count
from qd.process.scoreboard import MAX_OPEN_QUEUES
from qd.redaction import redact

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from qd.store.controls import Down, Pause

MOST_SHOWN = 500  # characters of a cell: other programs may write names of any length
LONGEST = 1000  # characters of a reason, which every host reads each second
UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
GAP = "  "
STDOUT, STDERR = 1, 2
ONE_LINE = "qd.one_line"  # in the meta of click's context: documents are lines (--watch)
CLOSED = (errno.EPIPE, errno.EBADF)  # the reader has left, or there never was one


def by_whom(note: Pause | Down, now: float) -> str:
    """` by ana@app-1 40m ago, for 20m more: "db upgrade"`; for maintenance mode also its end and the allowed queues."""
    from qd.store.controls import Down  # `qd health --live` loads no store

    text = f" by {note.by}" if note.by else ""
    if note.at is not None:
        text += f" {ago(now - note.at)}"
    if note.until is not None:
        left = max(0.0, note.until - now)
        text += f", until {local_time(time.time() + left)}" if isinstance(note, Down) else ""
        text += f", for {duration(left)} more"
    text += but(note) if isinstance(note, Down) else ""
    reason = note.reason if len(note.reason) <= LONGEST else note.reason[:LONGEST] + "..."
    return text + (f': "{reason}"' if reason else "")


def but(note: Down) -> str:
    """`, but for high, mail`: the queues that are worked on during maintenance mode."""
    return f", but for {', '.join(note.allow[:MAX_OPEN_QUEUES])}" if note.allow else ""


def quote(name: str) -> str:
    """A name in the command of a hint, as a shell reads it: low, 'my queue'."""
    import shlex  # only for hints

    return shlex.quote(name)


def moving(queue: str, job: str) -> str:
    """The command that moves a job of PHP out of a queue of Python. job: its name for people."""
    return f"`qd move {quote(queue)} --to PHP-QUEUE --job {quote(job)}`"


def resuming(kind: str, name: str) -> str:
    """The command that resumes a job, host or pool."""
    return f"`qd resume --{kind} {quote(name)}`"


def local_time(at: float) -> str:
    """Unix seconds in this host's time zone: `2026-11-21 18:30:00 CET (+01:00)`."""
    try:
        local = datetime.fromtimestamp(at).astimezone()
    except (ValueError, OverflowError, OSError):
        return "a date out of range"
    return f"{local:%Y-%m-%d %H:%M:%S %Z} ({local.isoformat()[-6:]})"


def iso(at: float | None) -> str | None:
    """Unix seconds for a JSON document: `2026-11-21T17:30:00.250Z`; None if there is no such date."""
    try:
        return None if at is None else f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='milliseconds')[:-6]}Z"
    except (ValueError, OverflowError, OSError):
        return None


def say(text: object = "", *, before: str = "") -> None:
    """Print a line of the result. before: styled text of qd itself, which is not cleaned."""
    click.echo(before + clean(text), color=coloured())


def note(text: str) -> None:
    click.echo(clean(text), err=True)


def shown(some: int, count: int, what: str, cut: int) -> None:
    """A note if not all were shown. cut: the number of keys that were looked at if the server has more, else 0."""
    if cut or some < max(1, count):
        note(f"{some:,} of {count:,} {what} shown{f', among the first {cut:,} keys of the server' if cut else ''}")


def document(value: object) -> None:
    """The result as one JSON document. ASCII only, so that no locale can break it."""
    here = click.get_current_context(silent=True)
    click.echo(json.dumps(value, indent=None if here is not None and here.meta.get(ONE_LINE) else 2))


def fields(thing: object, *names: str) -> dict[str, Any]:
    """These attributes, for a JSON document."""
    return {name: getattr(thing, name) for name in names}


def coloured() -> bool:
    """Whether stdout is a terminal that wants colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clean(text: object) -> str:
    """`text` in one line, with control, formatting and surrogate characters escaped, and secrets masked."""
    found = redact(str(text))
    if found.isprintable():
        return found
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else char.encode("unicode_escape").decode()
        for char in found
    )


MOST_SECONDS = 9999 * 365 * 86400.0  # that are shown


def duration(seconds: float | None) -> str:
    """A duration in its two largest units: 192 -> "3m 12s", 0.412 -> "0.4s", None -> "-"."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s" if seconds > 0 else "0s"
    left, parts = int(min(seconds, MOST_SECONDS)), list[str]()
    for unit, length in UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if part[0] != "0")


def ago(seconds: float | None) -> str:
    """ "3m 12s ago", or "just now" for less than a second."""
    if seconds is None:
        return "-"
    return "just now" if seconds < 1 else f"{duration(int(seconds))} ago"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Columns under `head`; those in `right` are numbers. Longer texts are cut, and end in their length. rich is only
    imported if the terminal is too narrow."""
    cells = [[cut(clean(cell), MOST_SHOWN) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(head, *cells, strict=True)]
    if sys.stdout.isatty() and sum(widths) + len(GAP) * (len(widths) - 1) > shutil.get_terminal_size().columns:
        return _wrapped(head, cells, right)
    say(before=click.style(_line(head, head, widths, right), bold=True))
    for row in cells:
        say(_line(head, row, widths, right))


def _line(head: Sequence[str], row: Sequence[str], widths: Sequence[int], right: Sequence[str]) -> str:
    parts = []
    for name, cell, wide in zip(head, row, widths, strict=True):
        pad = " " * (wide - width(cell))
        parts.append(pad + cell if name in right else cell + pad)
    return GAP.join(parts).rstrip()


def width(text: str) -> int:
    """Columns on a terminal: wide letters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = [unicodedata.east_asian_width(char) in "WF" for char in text if not unicodedata.combining(char)]
    return len(wide) + sum(wide)


def _wrapped(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold" if coloured() else "")
    for name in head:
        number = name in right
        grid.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(color_system="auto" if coloured() else None, markup=False, highlight=False).print(grid)


def guard() -> None:
    """Called once by the entry point of `qd`, before anything is opened."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:  # a standard descriptor that was closed
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = guarded(sys.stdout, STDOUT, "<stdout>")
    sys.stderr = guarded(sys.stderr, STDERR, "<stderr>")


def guarded(stream: TextIO | None, fd: int, name: str) -> TextIO:
    """A stream like this one whose writes do not fail in this process. None if Python started without the descriptor."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8", errors="replace")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    sink = Sink(fd, name)
    buffer = sink if stream.write_through else io.BufferedWriter(sink)
    return io.TextIOWrapper(
        buffer,  # unbuffered with -u, as Python's own stream
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def is_lost() -> bool:
    """Whether nobody reads stdout any more: a command that follows something ends."""
    buffer = getattr(sys.stdout, "buffer", None)
    sink = getattr(buffer, "raw", buffer)
    return isinstance(sink, Sink) and sink.lost


class Sink(io.FileIO):
    """A descriptor that accepts every byte. In forked processes errors are raised as usual: a job's print() is not a
    command's result."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "wb", closefd=False)
        self.name = name
        self._pid = os.getpid()
        self.lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        ours = os.getpid() == self._pid
        if self.lost and ours:
            return memoryview(data).nbytes
        try:
            while (taken := super().write(data)) is None and ours:  # non-blocking, and full
                select.select((), (self,), ())
            return taken  # in a forked process None, as from io.FileIO
        except OSError as error:
            if not ours:
                raise
            self.lost = True
            if self.fileno() != STDERR and error.errno not in CLOSED:
                line = f"qd: {self.name.strip('<>')}: {error.strerror}; the rest of the output is lost\n"
                with contextlib.suppress(OSError):
                    os.write(STDERR, line.encode())
            return memoryview(data).nbytes
