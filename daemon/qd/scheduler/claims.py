"""Where each entry stands in the store, and how its ticks are taken: compared with what was read, so by one scheduler only.

    field = "<ms> <token> <mark>"    the last tick that was decided; who wrote it, in which claim; the timing of its entry

A reply may be lost. What was claimed then is kept (Place.unsure) by the very text that it would have written: whoever finds
that text in the field has taken the tick, and nobody else has. A job was sent in the same step; a function is run then.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from dataclasses import field as made

from qd.bus.parcel import Parcel
from qd.connectors.base import Claim, Outgoing
from qd.schedule import Entry
from qd.scheduler.jobs import EntryJob
from qd.scheduler.moments import Due
from qd.store.schedule import read_field

AHEAD = 3_600_000  # ms: a field so far ahead was written by a wrong clock, and would hold its entry for ever
LETTERS = 6


class Tokens:
    """One for each claim of a scheduler, none twice."""

    def __init__(self) -> None:
        self._base, self._count = secrets.token_hex(LETTERS // 2), 0

    def next(self) -> str:
        self._count += 1
        return f"{self._base}.{self._count:x}"


@dataclass(slots=True, eq=False)
class Want:
    """A tick that is to be taken, and what is done then. skip: why it does not run; error: why its job could not be made.
    job: what is sent in the same step, None where the parcel sends itself."""

    place: Place
    due: Due
    after: bytes = b""
    skip: str = ""
    error: str = ""
    job: Outgoing | None = None
    parcel: Parcel | None = None

    @property
    def claim(self) -> Claim:
        place = self.place
        return Claim(place.queue, place.field, place.raw, self.after, self.due.at, self.job)


@dataclass(slots=True, eq=False)
class Place:
    """Where an entry stands. job: what it sends with its claim; None: it is run here after that, and never twice (lanes.py).
    last: its last tick as far as this scheduler knows, ms; raw: the field as it was read."""

    entry: Entry
    job: EntryJob | None
    queue: str
    field: str
    order: int
    key: tuple[str, str]  # of its timing
    raw: bytes = b""
    last: int = 0
    few: tuple[int, int] = (0, 0)  # between these moments not too many were missed: see moments.decided
    lost: bool = False  # the store had its field once, and has lost it
    answered: Due | None = None  # a tick that its filters were asked about, with what they said
    early: Want | None = None  # the tick after `last`, which is yet to come, with its job (early.py)
    unsure: dict[bytes, Want] = made(default_factory=dict)

    def want(self, due: Due) -> Want:
        """That tick, by now. What was made for it before goes out once."""
        early, self.early = self.early, None
        return early if early is not None and early.due == due else Want(self, due)

    def saw(self, raw: bytes, now: int, late: int) -> str:
        """The field is this. Returns what is strange about it, in words."""
        found = read_field(raw)
        self.lost = self.lost or bool(self.raw and not raw)
        self.raw, self.early = raw, None
        if found is None or found.at > now + AHEAD:
            self.last = now
            return (
                "the schedule of this entry began anew: a clock ahead of this one wrote its last tick" if found else ""
            )
        at = found.at
        if found.mark != self.key[1]:  # a deploy changed its timing: what is old was not due by this one
            at = max(at, now - late)
        if self.job is None and self.last <= now + AHEAD:
            at = max(at, self.last)  # what a server has lost is sent again with its job, but not run again
        self.last = at
        return ""
