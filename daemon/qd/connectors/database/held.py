"""A job in hand, as rows tell it: the bytes a worker is given are the payload's, with a unit that is worked out here.

The row of jobs keeps the payload as it was put there, and `attempts`, which counts this one, too; PHP looks at nothing else.
The row of reservations keeps the mark. Once a job has saved something its row holds the whole text, and the sum of it is
noted, so that an answer for an older text is told from one for this.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from qd.connectors.base import Reserved, reserved_of
from qd.connectors.database.jobsql import HIGHEST
from qd.errors import ServerRefused
from qd.reserving import Spliced, reserved_text
from qd.unit import Ending, unanswered

FRESH = b',"attempts":0,"delay":null}'  # how a payload ends that nobody has reserved yet


class Holding(NamedTuple):
    """A row of reservations. text_sum: of what the job's row holds since it saved something, None: nothing was saved."""

    id: int
    attempts: int
    reserved_at: int
    text_sum: int | None


def sum_of(text: bytes) -> int:
    return zlib.crc32(text)


def base_of(mark: str) -> str:
    """The part of a mark that a reservation keeps, however it is answered."""
    return mark.rpartition(".")[0]


def owners_mark(owner: str, member: bytes) -> str:
    """The mark of `owner` in a text that it holds, without its count; "" where none stands."""
    unit = unanswered(member, owner.replace("/", ".") + ".")
    return base_of(unit.mark) if unit else ""


def owner_in(member: bytes) -> tuple[str, str]:
    """Who holds a text, by the last mark in it, and that mark without its count; "": nobody does."""
    unit = unanswered(member)
    if unit is None:
        return "", ""
    mark = base_of(unit.mark)
    return mark.rpartition(".")[0].replace(".", "/"), mark


def text_of(payload: bytes) -> str:
    """As the column keeps it. Raises ServerRefused: it keeps text."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise ServerRefused(f"a payload that is not UTF-8 cannot stand in a table of jobs ({error})") from None
    if "\0" in text:
        raise ServerRefused("a payload with a NUL in it cannot stand in a table of jobs")
    return text


def may_stand(payload: bytes) -> bool:
    """Whether text_of takes it."""
    try:
        return bool(text_of(payload))
    except ServerRefused:
        return False


def bytes_of(payload: Any) -> bytes:
    """What stands in the column. SQLite keeps what it was given: bytes, a number, text that is not UTF-8."""
    return payload if isinstance(payload, bytes) else str(payload).encode("utf-8", "surrogateescape")


def column_of(payload: bytes) -> str | bytes:
    """What was taken out of the column, as it goes back there."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def row_of(
    queue: str, payload: bytes, due: int, now: int, text: Callable[[bytes], str | bytes] = text_of
) -> dict[str, Any]:
    """What is inserted for a payload; unix seconds. text: how it stands in the column."""
    return {"queue": queue, "payload": text(payload), "attempts": spent(payload), "due": due, "now": now}


def spliced(payload: bytes, base: str, attempts: int) -> Spliced | None:
    """With the unit of this reservation. attempts: as the row counts them, this one included. None: no payload."""
    if attempts < HIGHEST:
        return reserved_text(payload, base, attempts=attempts)
    return reserved_text(payload, base)  # as far as the column counts; the payload goes on


def spent(text: bytes) -> int:
    """How many attempts a payload that is put into the table has behind it: what its column is to say."""
    if text.endswith(FRESH) and b'rsv"' not in text:
        return 0
    found = reserved_text(text, "x.1.1")
    return min(HIGHEST, max(0, found.attempts - 1)) if found else 0


def member_of(payload: bytes, mark: str, attempts: int, text_sum: int | None) -> bytes:
    """The text that is in hand."""
    if text_sum is not None:
        return payload
    found = spliced(payload, mark, attempts)
    return found.text if found else payload


def reserved(queue: str, payload: bytes, mark: str, attempts: int, text_sum: int | None) -> Reserved | None:
    """None: it can be no job."""
    if text_sum is not None:
        return reserved_of(queue, payload, mark + ".")
    found = spliced(payload, mark, attempts)
    return found and Reserved(queue, found.text, found.mark, found.start, found.length, found.before)


def dropped(text: bytes, mark: str) -> bytes:
    """So marked that the next worker drops it."""
    needle = b'"rsv":"%b.' % mark.encode()
    at = text.find(needle)
    return (
        text
        if at < 0
        else text[: at + len(needle)] + Ending.CANCELLED.encode() + text[text.index(b'"', at + len(needle)) :]
    )
