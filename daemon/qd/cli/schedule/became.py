"""What became of the entries in one minute: heard from the scheduler's lines, told to people at once, kept for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from qd.cli import output
from qd.cli.schedule.which import moment, off, why_off
from qd.schedule import Entry
from qd.schedule.coming import next_of

if TYPE_CHECKING:
    from qd.config import Settings

SKIPS = ("schedule.skipped", "schedule.missed")


class Became:
    """start, end: of the minute, unix seconds. speaks: whether people are told; reasons: of what did not run, too."""

    def __init__(self, found: Settings, entries: Sequence[Entry], start: float, *, speaks: bool, reasons: bool) -> None:
        self.start, self.end = start, start + 60
        self.ran: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.stopped = ""  # why not all of the minute was worked on
        self._settings, self._entries = found, entries
        self._speaks, self._reasons = speaks, reasons

    @property
    def failed(self) -> bool:
        return any(one["outcome"] == "failed" for one in self.ran)

    # -- heard

    def hear(self, event: str, fields: Mapping[str, Any]) -> bool:
        """A line of the scheduler. False: it is not about a tick."""
        name, kind = str(fields.get("entry", "")), event.removeprefix("schedule.")
        if kind in ("sent", "done", "failed"):
            self._run(name, kind, fields)
        elif event in SKIPS:
            self._skip(name, str(fields.get("reason") or f"{fields.get('count')} missed"), fields.get("at"))
        return kind in ("sent", "started", "done", "failed") or event in SKIPS

    def _run(self, name: str, outcome: str, fields: Mapping[str, Any]) -> None:
        took, id, error = fields.get("took"), fields.get("id"), str(fields.get("error") or "")
        tick = seconds(fields.get("at"))
        self.ran.append({"entry": name, "tick_at": tick, "outcome": outcome, "id": id, "took_s": took, "error": error})
        if not self._speaks:
            return
        if outcome == "failed":
            trace = str(fields.get("trace") or "").rstrip().splitlines()
            for line in (f"failed {name}: {error}", *(f"    {each}" for each in trace)):
                output.note(line)
        else:
            more = f": job {id}" if outcome == "sent" else f", took {output.duration(took)}"
            output.say(output.clean(f"{outcome} {name}{more}"))

    def _skip(self, name: str, reason: str, at: object = None) -> None:
        self.skipped.append({"entry": name, "tick_at": seconds(at), "reason": reason})
        if self._speaks and self._reasons:
            output.say(output.clean(f"skipped {name}: {reason}"))

    # -- at the end

    def close(self, elsewhere: Mapping[str, str]) -> None:
        """Tell of the entries of which nothing was heard. elsewhere: entry -> the host that took its tick, where known."""
        heard = {one["entry"] for one in (*self.ran, *self.skipped)}
        for entry in self._entries:
            if entry.name not in heard:
                self._skip(entry.name, self._why(entry, elsewhere))

    def _why(self, entry: Entry, elsewhere: Mapping[str, str]) -> str:
        if off(entry, self._settings):
            return why_off(entry, self._settings)
        due = entry.timing.next_after(self.start - 0.001)
        if due is None:
            return "it never comes again"
        if due >= self.end:
            first = next_of(entry, self.start - 0.001)
            if first is None:
                return "not due within a year: its hours let no tick through"
            return f"not due before {moment(first, entry.timing.zone)} {entry.timing.zone}"
        if self.stopped:
            return self.stopped
        return f"taken by {elsewhere[entry.name]}" if entry.name in elsewhere else "taken by another scheduler"

    def document(self) -> dict[str, Any]:
        return {"minute_at": self.start, "stopped": self.stopped, "ran": self.ran, "skipped": self.skipped}


def seconds(at: object) -> float | None:
    """Unix seconds of a moment as a line of the log says it."""
    try:
        return datetime.fromisoformat(str(at)).timestamp() if at else None
    except ValueError:
        return None
