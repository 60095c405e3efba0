"""The table of jobs as the keyspace's steps see it (rows.py): what they push, count, look for and take away."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import sqlalchemy as sql

from qd.connectors.database.held import bytes_of, member_of, owner_in, row_of
from qd.connectors.database.jobsql import JobSql
from qd.connectors.database.listening import channel
from qd.connectors.database.rows import Placed, Running, Spot
from qd.connectors.database.tables import SECOND

FAR = 2**62


class JobRows:
    def __init__(self, texts: JobSql, table: str) -> None:
        self.sql, self.table = texts, table
        self._texts: dict[str, sql.TextClause] = {}

    def queues(self, run: Running) -> list[str]:
        return list(run.execute(self._text(f"SELECT DISTINCT queue FROM {self.sql.jobs} ORDER BY queue")).scalars())

    def add(self, run: Running, queue: str, payloads: Sequence[bytes], due_at: float | None, *, head: bool) -> None:
        now = int(run.now)
        due = now if due_at is None else max(now, ceil(due_at))
        if head and (first := self.page(run, queue, "ready", 0, 1, tail=False)):
            due = min(due, int(first[0].score) - 1)
        rows = [row_of(queue, payload, due, now) for payload in payloads]
        if rows:
            run.execute(self.sql.insert, rows if len(rows) > 1 else rows[0]).close()

    def count(self, run: Running, queue: str, spot: Spot) -> int:
        asked = f"SELECT count(*) FROM {self.sql.jobs} WHERE queue = :queue AND {where(spot)}"
        return int(run.execute(self._text(asked), values(run, queue, spot)).scalar_one())

    def page(self, run: Running, queue: str, spot: Spot, first: int, most: int, *, tail: bool) -> list[Placed]:
        if most <= 0:
            return []
        return self._found(run, queue, spot, "", {"most": most, "first": first}, tail)

    def until(self, run: Running, queue: str, spot: Spot, moment: float, most: int) -> list[Placed]:
        more = {"most": most, "first": 0, "moment": moment * SECOND if spot == "reserved" else moment}
        column = "s.leased_until" if spot == "reserved" else "j.available_at"
        return self._found(run, queue, spot, f" AND {column} <= :moment", more, False)

    def _found(
        self, run: Running, queue: str, spot: Spot, more: str, given: dict[str, Any], tail: bool
    ) -> list[Placed]:
        turned = " DESC" if tail else ""
        order = "s.leased_until" if spot == "reserved" else "j.available_at"
        joined = f" LEFT JOIN {self.sql.ours} s ON {self.sql.same}" if spot == "reserved" else ""
        columns = "j.payload, j.available_at, j.reserved_at, j.attempts"
        columns += ", s.mark, s.text_sum, s.leased_until" if spot == "reserved" else ""
        text = (
            f"SELECT {columns} FROM {self.sql.jobs} j{joined} WHERE j.queue = :queue AND {where(spot, 'j.')}{more}"
            f" ORDER BY {order}{turned}, j.id{turned} LIMIT :most OFFSET :first"
        )
        found = run.execute(self._text(text), {**values(run, queue, spot), **given}).all()
        return [placed(row, spot) for row in found]

    def score(self, run: Running, queue: str, spot: Spot, payload: bytes) -> float | None:
        if spot == "reserved":
            row = self._reserved(run, queue, payload)
            return None if row is None else row.leased_until / SECOND
        found = self._one(run, queue, spot, payload, False)
        return None if found is None else 0.0 if spot == "ready" else float(found.available_at)

    def lease(self, run: Running, queue: str, payload: bytes, until: float) -> bool:
        row = self._reserved(run, queue, payload)
        if row is None:
            return False
        text = f"UPDATE {self.sql.ours} SET leased_until = :until WHERE job_id = :id"
        run.execute(self._text(text), {"until": round(until * SECOND), "id": row.job_id}).close()
        return True

    def remove(self, run: Running, queue: str, spot: Spot, payload: bytes, *, tail: bool) -> bool:
        if spot == "reserved":
            row = self._reserved(run, queue, payload)
            if row is not None:
                run.execute(self.sql.forget, {"id": row.job_id, "mark": row.mark}).close()
            return row is not None and self._gone(run, row.job_id, held=True)
        found = self._one(run, queue, spot, payload, tail)
        return found is not None and self._gone(run, found.id)

    def _gone(self, run: Running, id: int, *, held: bool = False) -> bool:
        text = f"DELETE FROM {self.sql.jobs} WHERE id = :id AND reserved_at IS {'NOT ' if held else ''}NULL"
        return run.execute(self._text(text), {"id": id}).rowcount == 1

    def cut(self, run: Running, queue: str, spot: Spot, count: int, *, tail: bool) -> None:
        turned = " DESC" if tail else ""
        text = (
            f"SELECT id FROM {self.sql.jobs} WHERE queue = :queue AND {where(spot)}"
            f" ORDER BY available_at{turned}, id{turned} LIMIT :most"
        )
        found = run.execute(self._text(text), {**values(run, queue, spot), "most": count}).scalars().all()
        if found:
            gone = sql.text(f"DELETE FROM {self.sql.jobs} WHERE id IN :ids AND reserved_at IS NULL")
            run.execute(gone.bindparams(sql.bindparam("ids", expanding=True)), {"ids": list(found)}).close()

    def wake(self, run: Running, queue: str) -> None:
        if self.sql.listens:
            run.execute(self.sql.notify, {"channel": channel(self.table, queue)}).close()

    def _one(self, run: Running, queue: str, spot: Spot, payload: bytes, tail: bool) -> Any:
        turned = " DESC" if tail else ""
        text = (
            f"SELECT id, available_at FROM {self.sql.jobs} WHERE queue = :queue AND {where(spot)}"
            f" AND payload = :payload{self.sql.exactly}"
            f" ORDER BY available_at{turned}, id{turned} LIMIT 1{self.sql.locked}"
        )
        given = {**values(run, queue, spot), "payload": payload.decode("utf-8", "surrogateescape")}
        return run.execute(self._text(text), given).first()

    def _reserved(self, run: Running, queue: str, member: bytes) -> Any:
        """By its mark: whose it is stands in the text."""
        owner, mark = owner_in(member)
        rows = run.execute(self.sql.owned, {"owner": owner, "queue": queue}).all() if mark else []
        for row in rows:
            if row.mark == mark and member_of(bytes_of(row.payload), mark, row.attempts, row.text_sum) == member:
                return row
        return None

    def _text(self, text: str) -> sql.TextClause:
        if text not in self._texts:
            self._texts[text] = sql.text(text)
        return self._texts[text]


def where(spot: Spot, of: str = "") -> str:
    """now: the unix second it is."""
    if spot == "reserved":
        return f"{of}reserved_at IS NOT NULL"
    return f"{of}reserved_at IS NULL AND {of}available_at {'<=' if spot == 'ready' else '>'} :now"


def values(run: Running, queue: str, spot: Spot) -> dict[str, Any]:
    return {"queue": queue} if spot == "reserved" else {"queue": queue, "now": int(run.now)}


def placed(row: Any, spot: Spot) -> Placed:
    payload = bytes_of(row.payload)
    if spot != "reserved":
        return Placed(payload, float(row.available_at))
    if row.mark is None:  # one of PHP's
        return Placed(payload, float(row.reserved_at))
    return Placed(member_of(payload, row.mark, row.attempts, row.text_sum), row.leased_until / SECOND)
