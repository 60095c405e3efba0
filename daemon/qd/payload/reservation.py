"""The bytes of a payload that change while a job is held: the unit that the reserve script writes, worker and keeper answer.

It stands where Laravel's top-level `attempts` stands, in one piece; what the job saved stands behind it:
    "attempts":A[,"crashes":C][,"exceptions":E][,"held":T],"rsv":"TOKEN.SLOT.TURN.N"[,"saved":"BASE64URL"]
N repeats A while the reservation is unanswered: a payload found ready in that state cost its worker its life. `saved`
belongs to no reservation: whatever moves the payload moves it. Where no script runs, reserving.py writes the unit.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from qd.payload.format import base64url, read

_UNIT = re.compile(
    rb'"attempts":(\d+)(?:,"crashes":(\d+))?(?:,"exceptions":(\d+))?(?:,"held":(\d+))?,"rsv":"([^"\\]*)"'
)
_DIGITS = 40  # more than any count of ours has, less than Python refuses to read as a number
_RESERVED = re.compile(rb"\w+\.\d{1,%d}\.\d{1,%d}\.\d{1,%d}" % (_DIGITS, _DIGITS, _DIGITS), re.ASCII)
_LONGEST_UNIT = 160  # bytes before its mark
_SAVED = re.compile(rb',"saved":"[\w-]*"')
LIFE = 1_000_000_000  # turns that one worker makes at most: the next one in its slot counts on from there


class Ending(StrEnum):
    """What N of a mark becomes when the reservation is answered: what the next reserve has to do with the job."""

    ANSWERED = "-"  # run it
    TIMED_OUT = "t"  # run it; its worker was killed for its timeout
    FAILS = "x"  # fail it; its worker was killed for its timeout
    DIED_IN_HOOKS = "h"  # fail it without its hooks; it had failed, and they have killed its worker
    CANCELLED = "c"  # drop it


_LETTERS = frozenset(Ending)
_ENDINGS = {b'.%b"' % ending.encode(): ending for ending in Ending}


def ending_of(before: bytes) -> Ending | None:
    """How the last reservation ended, from the unit that this one has replaced. None: there was none, or nobody answered
    it."""
    return _ENDINGS.get(before[-3:])


class Mark(NamedTuple):
    """Who reserved a payload: master token, slot, turn, and the attempts then (an Ending once it was answered)."""

    token: str
    slot: int
    turn: int
    n: str

    @property
    def generation(self) -> int:
        """Of the worker in that slot, 1 for the first."""
        return (self.turn - 1) // LIFE + 1

    @property
    def base(self) -> str:
        """The part that stays when it is answered."""
        return f"{self.token}.{self.slot}.{self.turn}"


def split_mark(mark: str) -> Mark:
    """The parts of a mark. Raises ValueError when it is none."""
    parts = mark.split(".")
    if len(parts) != 4 or not parts[0] or not (parts[3] in _LETTERS or parts[3].isdecimal()):
        raise ValueError(f"'{mark[:80]}' is not the mark of a reservation (TOKEN.SLOT.TURN.N)")
    return Mark(parts[0], int(parts[1]), int(parts[2]), parts[3])


class ReservationFields(NamedTuple):
    """A unit as it stands in a payload, from `start` to before `end`."""

    mark: str
    attempts: int
    start: int
    end: int


def unanswered(member: bytes, base: str = "") -> ReservationFields | None:
    """The unit of the reservation that holds `member`, of the reserver whose marks begin with `base` when that is known
    (the arguments of a job may hold units too), else the last one. None: no unit stands in it."""
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
    """`member` with the unit of `mark` rewritten: the values given (None keeps one, 0 leaves it out), and N is `ended`.

    No other byte changes. Raises ValueError when that unit does not stand in it.
    """
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
    raise ValueError(f"no reservation '{mark[:80]}' stands in this payload")


def saving(member: bytes, mark: str, state: bytes) -> bytes:
    """`member` with `state` (JSON text) saved behind the unit of `mark`, in place of what was saved there before.

    No other byte changes. Where such a key stands further behind (another program has written the payload again, or means
    something else by it) the place is the end: of two equal keys the last one counts. Raises ValueError when that unit
    does not stand in it.
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


def original(member: bytes, start: int, length: int, before: bytes) -> bytes:
    """The payload as it was before a reserve wrote `length` bytes at `start` over `before`."""
    return member[:start] + before + member[start + length :]
