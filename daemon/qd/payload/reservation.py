"""The bytes of a payload that change while a worker holds the job: the reservation fields ("unit"). The reserve script
(reservation.lua; without scripts, splice.py) writes them, worker and keeper answer them.

They are in the place of Laravel's top-level `attempts`, in one piece, followed by what the job saved:
    "attempts":A[,"crashes":C][,"exceptions":E][,"held":T],"rsv":"TOKEN.SLOT.TURN.N"[,"saved":"BASE64URL"]
N repeats A while the reservation is unanswered: such a payload in a ready queue has crashed its worker. With a zero before
it, the job ran with other suspects (lanes.lua) and runs alone next time. `saved` belongs to
no reservation and moves with the payload.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

from qd.payload.format import base64url, read
from qd.process import SLOTS

_UNIT = re.compile(
    rb'"attempts":(\d+)(?:,"crashes":(\d+))?(?:,"exceptions":(\d+))?(?:,"held":(\d+))?,"rsv":"([^"\\]*)"'
)
_DIGITS = 40  # more than any count of ours has, fewer than Python refuses to convert
_RESERVED = re.compile(rb"\w+\.\d{1,%d}\.\d{1,%d}\.\d{1,%d}" % (_DIGITS, _DIGITS, _DIGITS), re.ASCII)
_LONGEST_UNIT = 160  # bytes before its mark
_SAVED = re.compile(rb',"saved":"[\w-]*"')
LIFE = 1_000_000_000  # turns per worker: the next worker of the slot counts on from there


class Ending(StrEnum):
    """The N of an answered mark: what the next reserve must do with the job."""

    ANSWERED = "-"  # run it
    TIMED_OUT = "t"  # run it; its worker was killed for its timeout
    FAILS = "x"  # fail it; its worker was killed for its timeout
    DIED_IN_HOOKS = "h"  # fail it without its hooks: it had failed, and the hooks killed its worker
    CANCELLED = "c"  # drop it


_LETTERS = frozenset(Ending)
_ENDINGS = {b'.%b"' % ending.encode(): ending for ending in Ending}


class _Marked(msgspec.Struct, gc=False):
    rsv: str | None = None


_decode_marked = msgspec.json.Decoder(_Marked).decode


def replaced_mark(before: bytes) -> str:
    """The mark in the bytes that a reserve replaced, "" without one. They are fields, or a whole payload that another
    program had rewritten."""
    try:
        return _decode_marked(before if before[:1] == b"{" else b"{%b}" % before.lstrip(b", ")).rsv or ""
    except (ValueError, RecursionError):
        return ""


def ending_of(before: bytes) -> Ending | None:
    """How the previous reservation ended, from the bytes that this one replaced. None: there was none, or it was never
    answered."""
    if before[:1] == b"{":
        before = b'%b"' % replaced_mark(before).encode()
    return _ENDINGS.get(before[-3:])


class Mark(NamedTuple):
    """The owner of a reservation: master token, seat, turn, and the attempts at that time (once answered, an Ending).

    Lane 0 of a worker runs a job that was taken alone. Its other lanes hold jobs that were taken together or run beside
    others: a mark of theirs that is never answered counts no crash."""

    token: str
    seat: int
    turn: int
    n: str

    @property
    def slot(self) -> int:
        return self.seat % SLOTS

    @property
    def lane(self) -> int:
        return self.seat // SLOTS

    @property
    def owner(self) -> str:
        """The field of the owners hash."""
        return f"{self.token}/{self.seat}"

    @property
    def generation(self) -> int:
        """The generation of the worker in that slot, 1 for the first."""
        return (self.turn - 1) // LIFE + 1

    @property
    def base(self) -> str:
        """The part that an answer does not change."""
        return f"{self.token}.{self.seat}.{self.turn}"

    @property
    def noted(self) -> str:
        """The field of the note on its worker's death. A job that moved to lane 0 keeps it."""
        return f"{self.token}.{self.slot}.{self.turn}"


def marks_of(owner: str) -> str:
    """The beginning of all marks of this owner, "TOKEN.SEAT."."""
    return owner.replace("/", ".") + "."


def split_mark(mark: str) -> Mark:
    """The parts of a mark, "TOKEN.SEAT.TURN.N". Raises ValueError if `mark` is not one."""
    parts = mark.split(".")
    if len(parts) != 4 or not parts[0] or not (parts[3] in _LETTERS or parts[3].isdecimal()):
        raise ValueError(f"'{mark[:80]}' is not the mark of a reservation (TOKEN.SLOT.TURN.N)")
    return Mark(parts[0], int(parts[1]), int(parts[2]), parts[3])


class ReservationFields(NamedTuple):
    """The reservation fields of a payload, at bytes `start` to before `end`."""

    mark: str
    attempts: int
    start: int
    end: int


def unanswered(member: bytes, base: str = "") -> ReservationFields | None:
    """The reservation fields of `member`; None without any. Arguments may contain the same text, so the fields whose mark
    begins with `base` win if there are any, else the last ones."""
    units = [unit for unit in _UNIT.finditer(member) if _RESERVED.fullmatch(unit[5]) and len(unit[1]) <= _DIGITS]
    if not units:
        return None
    found = next((unit for unit in reversed(units) if unit[5].startswith(base.encode())), units[-1])
    return ReservationFields(found[5].decode("utf-8", "replace"), int(found[1]), found.start(), found.end())


def answered(
    member: bytes,
    mark: str,
    *,
    attempts: int | None = None,
    crashes: int | None = None,
    exceptions: int | None = None,
    held: int | None = None,
    ended: Ending = Ending.ANSWERED,
) -> bytes:
    """`member` with the fields of `mark` rewritten: the values given (None keeps one, 0 leaves it out), and N is `ended`.
    No other byte changes. Raises ValueError if `member` has no such mark."""
    unit = _find(member, mark)
    given = (crashes, exceptions, held)
    count = unit[1] if attempts is None else b"%d" % attempts
    text = b'"attempts":' + count
    for key, old, new in zip((b"crashes", b"exceptions", b"held"), unit.groups()[1:4], given, strict=True):
        value = int(old or 0) if new is None else new
        if value:
            text += b',"%b":%d' % (key, value)
    text += b',"rsv":"%b%b"' % (mark[: mark.rindex(".") + 1].encode(), ended.encode())
    return member[: unit.start()] + text + member[unit.end() :]


def _find(member: bytes, mark: str) -> re.Match[bytes]:
    needle = b',"rsv":"%b"' % mark.encode()
    at = member.find(needle)
    while at >= 0 and mark.count(".") == 3:
        start = member.rfind(b'"attempts":', max(0, at - _LONGEST_UNIT), at)
        unit = _UNIT.match(member, start) if start >= 0 else None
        if unit and unit.end() == at + len(needle):
            return unit
        at = member.find(needle, at + 1)
    raise ValueError(f"this payload has no reservation '{mark[:80]}'")


def saving(member: bytes, mark: str, state: bytes) -> bytes:
    """`member` with the checkpoint `state` (JSON text) after the fields of `mark`, in place of an earlier one.

    No other byte changes. If a later key `saved` exists (another program rewrote the payload, or uses the name for
    something else), the checkpoint goes to the end: of two equal keys the last one counts. Raises ValueError if `member`
    has no such mark.
    """
    text = b',"saved":"%b"' % base64url(state)
    end = _find(member, mark).end()
    old = _SAVED.match(member, end)
    new = member[:end] + text + member[old.end() if old else end :]
    if bytes(read(new).saved) == text[len(b',"saved":') :]:
        return new
    close = member.rindex(b"}")
    last = member.rfind(b',"saved":"', end, close)
    start = last if last >= 0 and _SAVED.fullmatch(member, last, close) else close
    return member[:start] + text + member[close:]


def unstarted(member: bytes, mark: str) -> bytes:
    """`member` as if it had not been reserved under `mark`: nothing is counted. A payload that was never reserved before
    gets its pushed bytes back."""
    unit = _find(member, mark)
    if unit[1] == b"1" and unit.groups()[1:4] == (None, None, None):
        return member[: unit.start()] + b'"attempts":0' + member[unit.end() :]
    return answered(member, mark, attempts=max(0, int(unit[1]) - 1))


def taken_alone(member: bytes, mark: str) -> bytes:
    """`member` with its mark moved to lane 0: it ran alone, so that its unanswered mark counts a crash."""
    parts = split_mark(mark)
    unit = _find(member, mark)
    alone = parts._replace(seat=parts.slot)
    new = unit[0].replace(b'"rsv":"%b.' % parts.base.encode(), b'"rsv":"%b.' % alone.base.encode())
    return member[: unit.start()] + new + member[unit.end() :]


def original(member: bytes, start: int, length: int, before: bytes) -> bytes:
    """The payload as it was before a reserve wrote `length` bytes at `start` over `before`."""
    return member[:start] + before + member[start + length :]
