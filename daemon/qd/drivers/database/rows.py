"""Rows of the table of jobs as payloads.

    JobRows      the queues of the table as scripts of the keyspace see them: push, count, find, remove
    functions    the payload of a row, and the text that its worker has

A row of jobs keeps the payload as it was sent, and `attempts`, which includes the current reservation; PHP reads nothing
else. The row of reservations keeps the mark. A worker is given the payload with reservation fields that are computed here.
After a checkpoint the row of jobs contains the whole text, and the row of reservations the sum of this text, so that an
answer for an older text is recognized.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil
from typing import Any, Literal, NamedTuple, Protocol

import sqlalchemy as sql
from sqlalchemy import CursorResult, Executable

from qd.drivers.database.connection import channel
from qd.drivers.database.dialects import Server
from qd.drivers.database.schema import SECOND
from qd.drivers.database.sql import HIGHEST, statements
from qd.drivers.types import Reserved, reserved_of
from qd.errors import ServerRefused
from qd.payload.reservation import Ending, marks_of, unanswered
from qd.payload.splice import Spliced, reserved_text

FRESH = b',"attempts":0,"delay":null}'  # the end of a payload that was never reserved
Spot = Literal["ready", "delayed", "reserved"]


class Placed(NamedTuple):
    """A payload in its row. score: unix seconds at which it is due, or its lease runs out; 0 if it is ready."""

    payload: bytes
    score: float


class Executor(Protocol):
    """What JobRows needs of a Step."""

    @property
    def now(self) -> float:
        """Unix seconds of the database's clock, the same for a whole step."""

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        """values: a mapping, or a list of them for many. Raises ConnectionLost, ServerBusy or ServerRefused."""


clause = cache(sql.text)  # of the few texts that JobRows composes


class JobRows:
    """The queues of one table, for steps of the keyspace. Nothing is locked beforehand; a call that needs a row locked locks
    it (a step that reads the score of a reserved payload removes it next, or inserts)."""

    def __init__(self, server: Server, table: str) -> None:
        self.sql, self.table = statements(server.kind, server.clock, table), table

    def queues(self, step: Executor) -> list[str]:
        """Queues that have a row."""
        return list(step.execute(clause(f"SELECT DISTINCT queue FROM {self.sql.jobs} ORDER BY queue")).scalars())

    def add(self, step: Executor, queue: str, payloads: Sequence[bytes], due_at: float | None, *, head: bool) -> None:
        """due_at: None for ready payloads, at the tail in this order, or pushed one by one at the head."""
        now = int(step.now)
        due = now if due_at is None else max(now, ceil(due_at))
        if head and (first := self.page(step, queue, "ready", 0, 1, tail=False)):
            due = min(due, int(first[0].score) - 1)
        rows = [row_of(queue, payload, due, now) for payload in payloads]
        if rows:
            step.execute(self.sql["insert"], rows if len(rows) > 1 else rows[0]).close()

    def count(self, step: Executor, queue: str, spot: Spot) -> int:
        query = f"SELECT count(*) FROM {self.sql.jobs} WHERE queue = :queue AND {where(spot)}"
        return int(step.execute(clause(query), values(step, queue, spot)).scalar_one())

    def page(self, step: Executor, queue: str, spot: Spot, first: int, most: int, *, tail: bool) -> list[Placed]:
        """At most `most` from place `first` (0: the next in line, or the first due), in order. tail: counted from the
        other end, and in that order."""
        if most <= 0:
            return []
        return self._found(step, queue, spot, "", {"most": most, "first": first}, tail)

    def until(self, step: Executor, queue: str, spot: Spot, moment: float, most: int) -> list[Placed]:
        """At most `most` with a score up to `moment`, by score."""
        more = {"most": most, "first": 0, "moment": moment * SECOND if spot == "reserved" else moment}
        column = "s.leased_until" if spot == "reserved" else "j.available_at"
        return self._found(step, queue, spot, f" AND {column} <= :moment", more, False)

    def _found(
        self, step: Executor, queue: str, spot: Spot, more: str, bounds: dict[str, Any], tail: bool
    ) -> list[Placed]:
        down = " DESC" if tail else ""
        order = "s.leased_until" if spot == "reserved" else "j.available_at"
        joined = f" LEFT JOIN {self.sql.ours} s ON {self.sql.same}" if spot == "reserved" else ""
        columns = "j.payload, j.available_at, j.reserved_at, j.attempts"
        columns += ", s.mark, s.text_sum, s.leased_until" if spot == "reserved" else ""
        text = (
            f"SELECT {columns} FROM {self.sql.jobs} j{joined} WHERE j.queue = :queue AND {where(spot, 'j.')}{more}"
            f" ORDER BY {order}{down}, j.id{down} LIMIT :most OFFSET :first"
        )
        found = step.execute(clause(text), {**values(step, queue, spot), **bounds}).all()
        return [placed(row, spot) for row in found]

    def score(self, step: Executor, queue: str, spot: Spot, payload: bytes) -> float | None:
        """None if it is not there."""
        if spot == "reserved":
            row = self._reserved(step, queue, payload)
            return None if row is None else row.leased_until / SECOND
        found = self._one(step, queue, spot, payload, False)
        return None if found is None else 0.0 if spot == "ready" else float(found.available_at)

    def lease(self, step: Executor, queue: str, payload: bytes, until: float) -> bool:
        """Set the end of the lease of a reserved payload. Returns False, and does nothing, if it is not reserved."""
        row = self._reserved(step, queue, payload)
        if row is None:
            return False
        text = f"UPDATE {self.sql.ours} SET leased_until = :until WHERE job_id = :id"
        step.execute(clause(text), {"until": round(until * SECOND), "id": row.job_id}).close()
        return True

    def remove(self, step: Executor, queue: str, spot: Spot, payload: bytes, *, tail: bool) -> bool:
        """Remove the first or (tail) the last row of exactly these bytes. Returns False if there is none."""
        if spot == "reserved":
            row = self._reserved(step, queue, payload)
            if row is not None:
                step.execute(self.sql["forget"], {"id": row.job_id, "mark": row.mark}).close()
            return row is not None and self._gone(step, row.job_id, held=True)
        found = self._one(step, queue, spot, payload, tail)
        return found is not None and self._gone(step, found.id)

    def _gone(self, step: Executor, id: int, *, held: bool = False) -> bool:
        text = f"DELETE FROM {self.sql.jobs} WHERE id = :id AND reserved_at IS {'NOT ' if held else ''}NULL"
        return step.execute(clause(text), {"id": id}).rowcount == 1

    def cut(self, step: Executor, queue: str, spot: Spot, count: int, *, tail: bool) -> None:
        """Remove that many rows from the front or (tail) from the end."""
        down = " DESC" if tail else ""
        text = (
            f"SELECT id FROM {self.sql.jobs} WHERE queue = :queue AND {where(spot)}"
            f" ORDER BY available_at{down}, id{down} LIMIT :most"
        )
        found = step.execute(clause(text), {**values(step, queue, spot), "most": count}).scalars().all()
        if found:
            gone = sql.text(f"DELETE FROM {self.sql.jobs} WHERE id IN :ids AND reserved_at IS NULL")
            step.execute(gone.bindparams(sql.bindparam("ids", expanding=True)), {"ids": list(found)}).close()

    def wake(self, step: Executor, queue: str) -> None:
        """Notify the workers that wait for this queue when the transaction commits, if the database can."""
        if self.sql.listens:
            step.execute(self.sql["notify"], {"channel": channel(self.table, queue)}).close()

    def _one(self, step: Executor, queue: str, spot: Spot, payload: bytes, tail: bool) -> Any:
        down = " DESC" if tail else ""
        text = (
            f"SELECT id, available_at FROM {self.sql.jobs} WHERE queue = :queue AND {where(spot)}"
            f" AND payload = :payload{self.sql.exactly}"
            f" ORDER BY available_at{down}, id{down} LIMIT 1{self.sql.locked}"
        )
        given = {**values(step, queue, spot), "payload": payload.decode("utf-8", "surrogateescape")}
        return step.execute(clause(text), given).first()

    def _reserved(self, step: Executor, queue: str, member: bytes) -> Any:
        """The row of a reserved payload, whose text contains its owner and mark."""
        owner, mark = owner_in(member)
        rows = step.execute(self.sql["owned"], {"owners": [owner], "queues": [queue]}).all() if mark else []
        for row in rows:
            if row.mark == mark and member_of(bytes_of(row.payload), mark, row.attempts, row.text_sum) == member:
                return row
        return None


# -- rows as payloads


def sum_of(text: bytes) -> int:
    return zlib.crc32(text)


def base_of(mark: str) -> str:
    """A mark without its count of attempts, as the table of reservations keeps it."""
    return mark.rpartition(".")[0]


def owners_mark(owner: str, member: bytes) -> str:
    """The mark of `owner` in a text that it has reserved, without its count; "" if there is none."""
    unit = unanswered(member, marks_of(owner))
    return base_of(unit.mark) if unit else ""


def owner_in(member: bytes) -> tuple[str, str]:
    """The owner of a text, by the last mark in it, and that mark without its count; "" if there is none."""
    unit = unanswered(member)
    if unit is None:
        return "", ""
    mark = base_of(unit.mark)
    return owner_of(mark), mark


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


def where(spot: Spot, of: str = "") -> str:
    """A condition; :now is the current unix second."""
    if spot == "reserved":
        return f"{of}reserved_at IS NOT NULL"
    return f"{of}reserved_at IS NULL AND {of}available_at {'<=' if spot == 'ready' else '>'} :now"


def values(step: Executor, queue: str, spot: Spot) -> dict[str, Any]:
    return {"queue": queue} if spot == "reserved" else {"queue": queue, "now": int(step.now)}


def placed(row: Any, spot: Spot) -> Placed:
    payload = bytes_of(row.payload)
    if spot != "reserved":
        return Placed(payload, float(row.available_at))
    if row.mark is None:  # reserved by PHP
        return Placed(payload, float(row.reserved_at))
    return Placed(member_of(payload, row.mark, row.attempts, row.text_sum), row.leased_until / SECOND)
