"""Commands on the names of queues, which are rows of the table of jobs.

queues:Q            list   ready        LPUSH and RPUSH return how many were pushed, not the length
queues:Q:delayed    zset   delayed
queues:Q:reserved   zset   reserved     only a worker reserves: ZADD needs XX
queues:Q:notify     list   empty        a push wakes waiting workers; its length is that of ready

LISTS, SETS and NOTIFY, at the end, list the commands on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil
from typing import Any, Literal, NamedTuple

import sqlalchemy as sql

from qd.drivers.database.connection import channel
from qd.drivers.database.items import (
    OK,
    StatusReply,
    Words,
    bound,
    options,
    pairs,
    ranks,
    real,
    score_text,
    whole,
    with_scores,
)
from qd.drivers.database.rows import bytes_of, member_of, owner_in, row_of
from qd.drivers.database.schema import SECOND
from qd.drivers.database.sql import JobSql
from qd.drivers.database.transaction import WRONGTYPE, Step
from qd.errors import ServerRefused
from qd.options.kinds import QUEUE_SUFFIXES

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


class Placed(NamedTuple):
    """A payload in its row. score: unix seconds at which it is due, or its lease runs out."""

    payload: bytes
    score: float


class QueueKey:
    """A part of a queue in its table, for one step. notify: its list of tokens, which is always empty.

    Nothing is locked beforehand; a call that needs a row locked locks it (a step that reads the score of a reserved payload
    removes it next, or inserts)."""

    def __init__(self, step: Step, jobs: JobSql, queue: str, spot: Spot, notify: bool = False) -> None:
        self.step, self.sql, self.queue, self.spot, self.notify = step, jobs, queue, spot, notify
        self.jobs, self.where = f"{jobs.jobs} j", f"j.queue = :queue AND {WHERE[spot]}"

    def _run(self, text: str, **values: Any) -> sql.CursorResult[Any]:
        return self.step.execute(clause(text), {"queue": self.queue, "now": int(self.step.now), **values})

    def add(self, payloads: Sequence[bytes], due_at: float | None = None, *, head: bool = False) -> None:
        """due_at: None for ready payloads, at the tail in this order, or pushed one by one at the head."""
        now = int(self.step.now)
        due = now if due_at is None else max(now, ceil(due_at))
        if head and (first := self.page(0, 1)):
            due = min(due, int(first[0].score) - 1)
        rows = [row_of(self.queue, payload, due, now) for payload in payloads]
        if rows:
            self.step.execute(self.sql["insert"], rows if len(rows) > 1 else rows[0]).close()

    def count(self) -> int:
        return int(self._run(f"SELECT count(*) FROM {self.jobs} WHERE {self.where}").scalar_one())

    def page(self, first: int, most: int, *, tail: bool = False) -> list[Placed]:
        """At most `most` from place `first` (0: the next in line, or the first due), in order. tail: counted from the
        other end, and in that order."""
        return self._found(most, first, tail=tail) if most > 0 else []

    def until(self, moment: float, most: int) -> list[Placed]:
        """At most `most` with a score up to `moment`, by score."""
        if self.spot == "reserved":
            return self._found(most, more=" AND s.leased_until <= :moment", moment=moment * SECOND)
        return self._found(most, more=" AND j.available_at <= :moment", moment=moment)

    def _found(self, most: int, first: int = 0, more: str = "", *, tail: bool = False, **values: Any) -> list[Placed]:
        down = " DESC" if tail else ""
        order, joined, columns = "j.available_at", "", "j.payload, j.available_at, j.reserved_at, j.attempts"
        if self.spot == "reserved":
            order, joined = "s.leased_until", f" LEFT JOIN {self.sql.ours} s ON {self.sql.same}"
            columns += ", s.mark, s.text_sum, s.leased_until"
        text = (
            f"SELECT {columns} FROM {self.jobs}{joined} WHERE {self.where}{more}"
            f" ORDER BY {order}{down}, j.id{down} LIMIT :most OFFSET :first"
        )
        return [self._placed(row) for row in self._run(text, most=most, first=first, **values)]

    def _placed(self, row: Any) -> Placed:
        payload = bytes_of(row.payload)
        if self.spot != "reserved":
            return Placed(payload, float(row.available_at))
        if row.mark is None:  # reserved by PHP
            return Placed(payload, float(row.reserved_at))
        return Placed(member_of(payload, row.mark, row.attempts, row.text_sum), row.leased_until / SECOND)

    def score(self, payload: bytes) -> float | None:
        """0 if it is ready, None if it is not there."""
        if self.spot == "reserved":
            row = self._reserved(payload)
            return None if row is None else row.leased_until / SECOND
        found = self._one(payload)
        return None if found is None else 0.0 if self.spot == "ready" else float(found.available_at)

    def lease(self, payload: bytes, until: float) -> bool:
        """Set the end of the lease of a reserved payload. Returns False, and does nothing, if it is not reserved."""
        row = self._reserved(payload)
        if row is not None:
            text = f"UPDATE {self.sql.ours} SET leased_until = :until WHERE job_id = :id"
            self._run(text, until=round(until * SECOND), id=row.job_id).close()
        return row is not None

    def remove(self, payload: bytes, *, tail: bool = False) -> bool:
        """Remove the first or (tail) the last row of exactly these bytes. Returns False if there is none."""
        held = self.spot == "reserved"
        row = self._reserved(payload) if held else self._one(payload, tail)
        if row is None:
            return False
        if held:
            self.step.execute(self.sql["forget"], {"id": row.job_id, "mark": row.mark}).close()
        text = f"DELETE FROM {self.sql.jobs} WHERE id = :id AND reserved_at IS {'NOT ' if held else ''}NULL"
        return self._run(text, id=row.job_id if held else row.id).rowcount == 1

    def cut(self, count: int, *, tail: bool = False) -> None:
        """Remove that many rows from the front or (tail) from the end."""
        down = " DESC" if tail else ""
        text = f"SELECT j.id FROM {self.jobs} WHERE {self.where} ORDER BY j.available_at{down}, j.id{down} LIMIT :most"
        if found := self._run(text, most=count).scalars().all():
            self.step.execute(self.sql["delete_free"], {"ids": list(found)}).close()

    def wake(self) -> None:
        """Notify the workers that wait for this queue when the transaction commits, if the database can."""
        if self.sql.listens:
            self.step.execute(self.sql["notify"], {"channel": channel(self.sql.table, self.queue)}).close()

    def _one(self, payload: bytes, tail: bool = False) -> Any:
        down = " DESC" if tail else ""
        text = (
            f"SELECT j.id, j.available_at FROM {self.jobs} WHERE {self.where} AND j.payload = :payload{self.sql.exactly}"
            f" ORDER BY j.available_at{down}, j.id{down} LIMIT 1{self.sql.locked}"
        )
        return self._run(text, payload=payload.decode("utf-8", "surrogateescape")).first()

    def _reserved(self, member: bytes) -> Any:
        """The row of a reserved payload, whose text contains its owner and mark."""
        owner, mark = owner_in(member)
        values = {"owners": [owner], "queues": [self.queue]}
        for row in self.step.execute(self.sql["owned"], values).all() if mark else ():
            if row.mark == mark and member_of(bytes_of(row.payload), mark, row.attempts, row.text_sum) == member:
                return row
        return None


def place_of(step: Step, name: bytes) -> QueueKey | None:
    """The queue that the name means, or None for any other name."""
    if step.jobs is None or not name.startswith(step.prefix + QUEUES):
        return None
    body = name[len(step.prefix) + len(QUEUES) :]
    for ending, spot in SPOTS.items():
        if body.endswith(ending):
            queue = body.removesuffix(ending).decode("utf-8", "surrogateescape")
            return QueueKey(step, step.jobs, queue, spot, ending == NOTIFY_END)
    if body.endswith(OTHERS) or not body:
        return None
    return QueueKey(step, step.jobs, body.decode("utf-8", "surrogateescape"), "ready")


def names(step: Step) -> list[bytes]:
    """`queues:Q` of every queue that has a row."""
    if step.jobs is None:
        return []
    found = step.execute(clause(f"SELECT DISTINCT queue FROM {step.jobs.jobs} ORDER BY queue")).scalars()
    return [step.prefix + QUEUES + name.encode("utf-8", "surrogateescape") for name in found]


def run(place: QueueKey, command: str, words: Words) -> Any:
    """words: without the name. Raises ServerRefused."""
    place.step.open(())
    table = NOTIFY if place.notify else LISTS if place.spot == "ready" else SETS
    if command in table:
        return table[command](place, words)
    if command in LISTS or command in SETS:
        raise ServerRefused(WRONGTYPE)
    raise ServerRefused(f"ERR '{command}' is not supported for a queue in a database")


def count(place: QueueKey, _words: Words = ()) -> int:
    return place.count()


def exists(place: QueueKey, _words: Words) -> int:
    return int(place.count() > 0)


def kind(place: QueueKey, _words: Words) -> StatusReply:
    word = b"list" if place.spot == "ready" else b"zset"
    return StatusReply(word if place.count() else b"none")


# -- ready


def push(place: QueueKey, words: Words, *, head: bool = False) -> int:
    place.add(words, head=head)
    return len(words)


def page(place: QueueKey, first: int, last: int) -> list[Placed]:
    """A range as in Redis: from the end if negative, both included."""
    if first < 0 and last < 0:
        return place.page(-last - 1, last - first + 1, tail=True)[::-1]
    most = last - first + 1
    if first < 0 or last < 0:
        first, most = ranks(first, last, place.count())
    return place.page(first, most)


def lindex(place: QueueKey, words: Words) -> bytes | None:
    at = whole(words[0])
    found = page(place, at, at)
    return found[0].payload if found else None


def lrange(place: QueueKey, words: Words) -> list[bytes]:
    return [each.payload for each in page(place, whole(words[0]), whole(words[1]))]


def lrem(place: QueueKey, words: Words) -> int:
    most, gone = whole(words[0]), 0
    while (gone < abs(most) or not most) and place.remove(words[1], tail=most < 0):
        gone += 1
    return gone


def lpop(place: QueueKey, _words: Words) -> bytes | None:
    found = place.page(0, 1)
    return found[0].payload if found and place.remove(found[0].payload) else None


def ltrim(place: QueueKey, words: Words) -> StatusReply:
    first, last = whole(words[0]), whole(words[1])
    if first > 0 and last == -1:
        place.cut(first)
    elif first == 0 and last < -1:
        place.cut(-1 - last, tail=True)
    elif (first, last) != (0, -1):
        raise ServerRefused("ERR a queue in a database can be trimmed at one end only")
    return OK


# -- delayed and reserved


def zadd(place: QueueKey, words: Words) -> int:
    only_old, changed = words[0].upper() == b"XX", 0
    words = words[1:] if only_old else words
    counts = words[0].upper() == b"CH"
    for score, payload in pairs(words[1:] if counts else words):
        if place.spot != "reserved":
            place.add((payload,), real(score))
        elif only_old:
            changed += place.lease(payload, real(score))
        else:
            raise ServerRefused("ERR only a worker can reserve a job in a database")
    return changed if counts else 0 if only_old else len(words) // 2


def zrem(place: QueueKey, words: Words) -> int:
    return sum(place.remove(each) for each in words if each)


def zscore(place: QueueKey, words: Words) -> bytes | None:
    found = place.score(words[0])
    return None if found is None else score_text(found)


def zrange(place: QueueKey, words: Words) -> list[bytes]:
    found = page(place, whole(words[0]), whole(words[1]))
    return with_scores(found) if len(words) > 2 else [each.payload for each in found]


def zrangebyscore(place: QueueKey, words: Words) -> list[bytes]:
    """From -inf only."""
    rest = [each.upper() for each in words[2:]]
    most = whole(words[2 + rest.index(b"LIMIT") + 2]) if b"LIMIT" in rest else 2**31 - 1
    if words[0] != b"-inf":
        raise ServerRefused("ERR a queue in a database can be read from its first job only")
    found = place.until(bound(words[1]).score, most)
    return with_scores(found) if b"WITHSCORES" in rest else [each.payload for each in found]


def zremrangebyrank(place: QueueKey, words: Words) -> int:
    first, last = whole(words[0]), whole(words[1])
    if first == 0 and last >= 0:
        place.cut(last + 1)
    elif not first > last >= 0:
        raise ServerRefused("ERR a queue in a database can be trimmed at its front only")
    return max(0, last + 1 - first)


def zscan(place: QueueKey, words: Words) -> list[Any]:
    """By place: jobs that move meanwhile may be missed."""
    at, most = whole(words[0]), whole(options(words[1:]).get(b"COUNT", b"10"))
    found = place.page(at, most)
    return [b"%d" % (at + most) if len(found) == most else b"0", with_scores(found)]


# -- tokens


def wake(place: QueueKey, words: Words) -> int:
    place.wake()
    return len(words)


Run = Callable[[QueueKey, Words], Any]
ANY: dict[str, Run] = {"EXISTS": exists, "TYPE": kind}
LISTS: dict[str, Run] = {
    **ANY,
    "RPUSH": push,
    "LPUSH": lambda place, words: push(place, words, head=True),
    "LPOP": lpop,
    "LLEN": count,
    "LINDEX": lindex,
    "LRANGE": lrange,
    "LREM": lrem,
    "LTRIM": ltrim,
}
SETS: dict[str, Run] = {
    **ANY,
    "ZADD": zadd,
    "ZREM": zrem,
    "ZCARD": count,
    "ZSCORE": zscore,
    "ZRANGE": zrange,
    "ZRANGEBYSCORE": zrangebyscore,
    "ZREMRANGEBYRANK": zremrangebyrank,
    "ZSCAN": zscan,
}
NOTIFY: dict[str, Run] = {**ANY, "RPUSH": wake, "LPOP": lambda *_: None, "LTRIM": lambda *_: OK, "LLEN": count}
