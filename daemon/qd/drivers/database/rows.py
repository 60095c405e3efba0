"""Rows of the table of jobs as payloads.

A row of jobs keeps the payload as it was sent, and `attempts`, which includes the current reservation; PHP reads nothing
else. The row of reservations keeps the mark. A worker is given the payload with reservation fields that are computed here.
After a checkpoint the row of jobs contains the whole text, and the row of reservations the sum of this text, so that an
answer for an older text is recognized.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from qd.drivers.database.schema import SECOND
from qd.drivers.database.sql import HIGHEST
from qd.drivers.types import Reserved, reserved_of
from qd.errors import ServerRefused
from qd.payload.reservation import Ending, marks_of, unanswered
from qd.payload.splice import Spliced, reserved_text

FRESH = b',"attempts":0,"delay":null}'  # the end of a payload that was never reserved


def sum_of(text: bytes) -> int:
    return zlib.crc32(text)


def base_of(mark: str) -> str:
    """A mark without its count of attempts, as the table of reservations keeps it."""
    return mark.rpartition(".")[0]


def owners_mark(owner: str, member: bytes) -> str:
    """The mark of `owner` in a text that it has reserved, without its count; "" if there is none."""
    unit = unanswered(member, marks_of(owner))
    return base_of(unit.mark) if unit else ""


def owner_of(mark: str) -> str:
    """mark: without its count."""
    return mark.rpartition(".")[0].replace(".", "/")


def text_of(payload: bytes) -> str:
    """The value of the column. Raises ServerRefused if it is not text."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise ServerRefused(f"a table of jobs cannot store a payload that is not UTF-8 ({error})") from None
    if "\0" in text:
        raise ServerRefused("a table of jobs cannot store a payload with a NUL")
    return text


def is_text(payload: bytes) -> bool:
    """Whether text_of accepts it."""
    try:
        return bool(text_of(payload))
    except ServerRefused:
        return False


def bytes_of(payload: Any) -> bytes:
    """The payload in the column. SQLite keeps any value: bytes, a number, text that is not UTF-8."""
    return payload if isinstance(payload, bytes) else str(payload).encode("utf-8", "surrogateescape")


def column_of(payload: bytes) -> str | bytes:
    """A payload read from the column, to be written back."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def row_of(
    queue: str, payload: bytes, due: int, now: int, text: Callable[[bytes], str | bytes] = text_of
) -> dict[str, Any]:
    """The row to insert for a payload. due, now: unix seconds. text: makes the value of the column."""
    return {"queue": queue, "payload": text(payload), "attempts": spent(payload), "due": due, "now": now}


def row_after(
    queue: str, payload: bytes, us: int, delay: float, text: Callable[[bytes], str | bytes] = text_of
) -> dict[str, Any]:
    """The row to insert for a payload that is due `delay` seconds after `us`, in microseconds."""
    return row_of(queue, payload, (us + after(delay)) // SECOND, us // SECOND, text)


def spliced(payload: bytes, base: str, attempts: int) -> Spliced | None:
    """The payload with the fields of this reservation, or None if it is no job. attempts: of the row, including this one."""
    # the column counts no further than HIGHEST; the payload does
    return reserved_text(payload, base, attempts=attempts if attempts < HIGHEST else None)


def spent(text: bytes) -> int:
    """The attempts of a payload before it is inserted, for its column."""
    if text.endswith(FRESH) and b'rsv"' not in text:
        return 0
    found = reserved_text(text, "x.1.1")
    return min(HIGHEST, max(0, found.attempts - 1)) if found else 0


def member_of(payload: bytes, mark: str, attempts: int, text_sum: int | None) -> bytes:
    """The text that the worker has."""
    if text_sum is not None:
        return payload
    found = spliced(payload, mark, attempts)
    return found.text if found else payload


def reserved(queue: str, payload: bytes, mark: str, attempts: int, text_sum: int | None) -> Reserved | None:
    """None if the payload is no job."""
    if text_sum is not None:
        return reserved_of(queue, payload, mark + ".")
    found = spliced(payload, mark, attempts)
    return found and Reserved(queue, found.text, found.mark, found.start, found.length, found.before)


def dropped(text: bytes, mark: str) -> bytes:
    """The text with a mark that makes the next worker drop it."""
    needle = b'"rsv":"%b.' % mark.encode()
    at = text.find(needle)
    if at < 0:
        return text
    end = at + len(needle)
    return text[:end] + Ending.CANCELLED.encode() + text[text.index(b'"', end) :]


def after(delay: float) -> int:
    """Microseconds to add to the clock, so that the whole second of the sum is not early."""
    return round(delay * SECOND) + SECOND - 1 if delay > 0 else 0
