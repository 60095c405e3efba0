"""What commands print: results on stdout, notes on stderr, tables for people, one JSON document for programs.

Whatever comes from a queue may hold anything: control characters never reach the terminal as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence

import click

from qd.masks import masked

UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
GAP = "  "


def say(text: str = "") -> None:
    """A line of the result."""
    click.echo(text, color=coloured())


def note(text: str) -> None:
    """A line beside the result, on stderr."""
    click.echo(clean(text), err=True)


def document(value: object) -> None:
    """The result as one JSON document. ASCII only, so that no locale can break it."""
    click.echo(json.dumps(value, indent=2))


def coloured() -> bool:
    """Whether stdout is a terminal that wants colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clean(text: object) -> str:
    """`text` with control, formatting and surrogate characters escaped: it stays one line and moves no cursor. Secrets are
    masked."""
    found = masked(str(text))
    if found.isprintable():
        return found
    return "".join(char if char.isprintable() or unicodedata.category(char) == "Zs" else escape(char) for char in found)


def escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units: 192 -> "3m 12s", 0.412 -> "0.4s", None -> "-"."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s" if seconds > 0 else "0s"
    left, parts = int(seconds), list[str]()
    for unit, length in UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if part[0] != "0")


def ago(seconds: float | None) -> str:
    """ "3m 12s ago", or "just now" for less than a second."""
    if seconds is None:
        return "-"
    return "just now" if seconds < 1 else f"{duration(int(seconds) if seconds >= 1 else seconds)} ago"


def count(number: int, thing: str) -> str:
    """`1 master`, `2 masters`, `0 jobs`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Columns under `head`; those named in `right` are numbers. Only a terminal that is too narrow needs rich."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(head, *cells, strict=True)]
    if sys.stdout.isatty() and sum(widths) + len(GAP) * (len(widths) - 1) > shutil.get_terminal_size().columns:
        return _wrapped(head, cells, right)
    say(click.style(_line(head, head, widths, right), bold=True))
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
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


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
