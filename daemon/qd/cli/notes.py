"""What operators have left, in words: who, since when, how long yet, why. It may be anybody's: `output.clean` it."""

from __future__ import annotations

import time
from datetime import datetime

from qd.cli import output
from qd.process.allowed import MOST
from qd.store import stamps

LONGEST = 1000  # characters of a reason: every host reads it each second


def by_whom(note: stamps.Pause | stamps.Down, now: float) -> str:
    """` by ana@app-1 40m ago, for 20m more: "db upgrade"`; of maintenance mode the moment and the allowed queues, too."""
    said = f" by {note.by}" if note.by else ""
    if note.at is not None:
        said += f" {output.ago(now - note.at)}"
    if note.until is not None:
        left = max(0.0, note.until - now)
        said += f", until {shown(time.time() + left)}" if isinstance(note, stamps.Down) else ""
        said += f", for {output.duration(left)} more"
    said += but(note) if isinstance(note, stamps.Down) else ""
    return said + (f': "{shortened(note.reason)}"' if note.reason else "")


def but(note: stamps.Down) -> str:
    """`, but for high, mail`: the queues that are worked on meanwhile."""
    return f", but for {', '.join(note.allow[:MOST])}" if note.allow else ""


def shown(at: float) -> str:
    """A moment (unix seconds) in full, with this host's zone: `2026-11-21 18:30:00 CET (+01:00)`."""
    try:
        local = datetime.fromtimestamp(at).astimezone()
    except (ValueError, OverflowError, OSError):
        return "a moment that no calendar knows"
    return f"{local:%Y-%m-%d %H:%M:%S %Z} ({local.isoformat()[-6:]})"


def shortened(reason: str) -> str:
    return reason if len(reason) <= LONGEST else reason[:LONGEST] + "..."
