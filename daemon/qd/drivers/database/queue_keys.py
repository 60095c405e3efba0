"""Names of queues: rows of the table of jobs as lists and sorted sets, as far as steps and operators use them.

queues:Q            list   ready        RPUSH returns how many were pushed, not the length
queues:Q:delayed    zset   delayed
queues:Q:reserved   zset   reserved     can be read only: the statements of a turn reserve and answer
queues:Q:notify     list   empty        a push wakes waiting workers; its length is that of ready
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import sqlalchemy as sql

from qd.drivers.database.connection import channel
from qd.drivers.database.names import Item, Name, ranks, real
from qd.drivers.database.rows import bytes_of, member_of, row_of
from qd.drivers.database.schema import SECOND
from qd.drivers.database.sql import JobSql
from qd.errors import ServerRefused
from qd.options.kinds import QUEUE_SUFFIXES

if TYPE_CHECKING:
    from qd.drivers.database.transaction import Step

QUEUES, NOTIFY_END = b"queues:", b":notify"
Spot = Literal["ready", "delayed", "reserved"]
SPOTS: dict[bytes, Spot] = {b":delayed": "delayed", b":reserved": "reserved", NOTIFY_END: "ready"}
OTHERS = tuple(ending.encode() for ending in QUEUE_SUFFIXES)
WHERE: dict[Spot, str] = {  # :now is the current unix second
    "ready": "j.reserved_at IS NULL AND j.available_at <= :now",
    "delayed": "j.reserved_at IS NULL AND j.available_at > :now",
    "reserved": "j.reserved_at IS NOT NULL",
}
clause = cache(sql.text)  # of the few texts that are composed here


class QueueKey(Name):
    """A part of a queue. Its items are payloads; the score is the unix second in which one is due, or in which its lease
    runs out. notify: the list of tokens, which is always empty. No row is locked beforehand."""

    def __init__(self, step: Step, name: bytes, jobs: JobSql, queue: str, spot: Spot, notify: bool = False) -> None:
        super().__init__(step, name)
        self.kind, self.sql, self.queue, self.spot = "list" if spot == "ready" else "zset", jobs, queue, spot
        self.notify, self.jobs, self.where = notify, f"{jobs.jobs} j", f"j.queue = :queue AND {WHERE[spot]}"

    def _run(self, text: str, **values: Any) -> sql.CursorResult[Any]:
        return self.step.execute(clause(text), {"queue": self.queue, "now": self._now, **values})

    @property
    def _now(self) -> int:
        return self.step.now_us // SECOND

    def _insert(self, payloads: Sequence[bytes], due: int) -> None:
        rows = [row_of(self.queue, payload, due, self._now) for payload in payloads]
        self.step.execute(self.sql["insert"], rows if len(rows) > 1 else rows[0])

    def _delete_first(self, most: int, payload: bytes | None = None, *, down: bool = False) -> int:
        """Delete at most `most` rows, of exactly these bytes if given, from the front or (down) from the end. Returns how
        many."""
        if self.spot == "reserved":
            self._refuse()
        desc, same = " DESC" if down else "", "" if payload is None else f" AND j.payload = :payload{self.sql.exactly}"
        values = {} if payload is None else {"payload": payload.decode("utf-8", "surrogateescape")}
        text = (
            f"SELECT j.id FROM {self.jobs} WHERE {self.where}{same}"
            f" ORDER BY j.available_at{desc}, j.id{desc} LIMIT :most{self.sql.locked}"
        )
        ids = self._run(text, most=most, **values).scalars().all()
        return self.step.execute(self.sql["delete_free"], {"ids": list(ids)}).rowcount if ids else 0

    def _page(self, first: int, most: int, *, down: bool = False) -> list[Item]:
        """At most `most` from place `first` (0: the next in line, or the first due), in order. down: counted from the
        other end, and in that order."""
        if self.notify or most <= 0:
            return []
        order, joined, columns = "j.available_at", "", "j.payload, j.available_at, j.reserved_at, j.attempts"
        if self.spot == "reserved":
            order, joined = "s.leased_until", f" LEFT JOIN {self.sql.ours} s ON {self.sql.same}"
            columns += ", s.mark, s.text_sum, s.leased_until"
        desc = " DESC" if down else ""
        text = (
            f"SELECT {columns} FROM {self.jobs}{joined} WHERE {self.where}"
            f" ORDER BY {order}{desc}, j.id{desc} LIMIT :most OFFSET :first"
        )
        return [self._item(row) for row in self._run(text, most=most, first=first)]

    def _item(self, row: Any) -> Item:
        payload, score = bytes_of(row.payload), row.available_at
        if self.spot == "reserved":  # without a mark: by PHP
            score = row.reserved_at if row.mark is None else row.leased_until / SECOND
            payload = payload if row.mark is None else member_of(payload, row.mark, row.attempts, row.text_sum)
        return Item(payload, float(score), payload)

    # -- as of other names

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ServerRefused("ERR this is not supported for a queue in a database")

    _rows = add = _delete = clear = _refuse

    def count(self) -> int:
        return int(self._run(f"SELECT count(*) FROM {self.jobs} WHERE {self.where}").scalar_one())

    def by_rank(self, first: int, last: int) -> list[Item]:
        if first < 0 and last < 0:
            return self._page(-last - 1, last - first + 1, down=True)[::-1]
        most = last - first + 1
        if first < 0 or last < 0:
            first, most = ranks(first, last, self.count())
        return self._page(first, most)

    def after(self, key: bytes | None, most: int) -> tuple[bytes | None, list[Item]]:
        """By place: jobs that move meanwhile may be missed."""
        at = int(key or b"0")
        found = self._page(at, most)
        return b"%d" % (at + most) if len(found) == most else None, found

    def push(self, values: Sequence[bytes], *, head: bool) -> int:
        """Returns how many. A push into `notify` wakes the workers that wait when the transaction commits, if the database
        can."""
        if self.notify and self.sql.listens:
            self.step.execute(self.sql["notify"], {"channel": channel(self.sql.table, self.queue)}).close()
        elif head and not self.notify:
            self._refuse()
        elif not self.notify:
            self._insert(values, self._now)
        return len(values)

    def rescore(self, added: Sequence[tuple[bytes, bytes]], *, only_old: bool, only_new: bool) -> tuple[int, int]:
        if self.spot == "reserved" or only_old or only_new:
            self._refuse()
        for score, payload in added:
            self._insert((payload,), max(self._now, ceil(real(score))))
        return len(added), len(added)

    def take(self, members: Iterable[bytes]) -> int:
        return sum(self._delete_first(1, each) for each in members if each)

    def remove(self, value: bytes, most: int, *, down: bool) -> int:
        return self._delete_first(most, value, down=down)

    def cut(self, first: int, last: int) -> int:
        return self._delete_first(last + 1) if first == 0 <= last else self._refuse()

    def trim(self, first: int, last: int) -> None:
        """At one end only."""
        if self.notify or (first, last) == (0, -1):
            return
        if first > 0 and last == -1:
            self._delete_first(first)
        elif first == 0 and last < -1:
            self._delete_first(-1 - last, down=True)
        else:
            self._refuse()


def place_of(step: Step, name: bytes) -> QueueKey | None:
    """The queue that the name means, or None for any other name."""
    if step.jobs is None or not name.startswith(step.prefix + QUEUES):
        return None
    body = name[len(step.prefix) + len(QUEUES) :]
    for ending, spot in SPOTS.items():
        if body.endswith(ending):
            queue = body.removesuffix(ending).decode("utf-8", "surrogateescape")
            return QueueKey(step, name, step.jobs, queue, spot, ending == NOTIFY_END)
    if body.endswith(OTHERS) or not body:
        return None
    return QueueKey(step, name, step.jobs, body.decode("utf-8", "surrogateescape"), "ready")


def names(step: Step) -> list[bytes]:
    """`queues:Q` of every queue that has a row."""
    if step.jobs is None:
        return []
    found = step.execute(clause(f"SELECT DISTINCT queue FROM {step.jobs.jobs} ORDER BY queue")).scalars()
    return [step.prefix + QUEUES + name.encode("utf-8", "surrogateescape") for name in found]
