"""Commands on the names of queues, which are rows of the table of jobs. Only those that steps and operators use:

queues:Q            list   ready        RPUSH returns how many were pushed, not the length
queues:Q:delayed    zset   delayed
queues:Q:reserved   zset   reserved     can be read only: the statements of a turn reserve and answer
queues:Q:notify     list   empty        a push wakes waiting workers; its length is that of ready

LISTS, SETS, RESERVED and NOTIFY, at the end, list the commands on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil
from typing import Any, Literal, NamedTuple

import sqlalchemy as sql

from qd.drivers.database.connection import channel
from qd.drivers.database.rows import bytes_of, member_of, row_of
from qd.drivers.database.schema import SECOND
from qd.drivers.database.sql import JobSql
from qd.drivers.database.transaction import (
    OK,
    WRONGTYPE,
    StatusReply,
    Step,
    Words,
    options,
    pairs,
    ranks,
    real,
    whole,
    with_scores,
)
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
ALL = 2**31 - 1
clause = cache(sql.text)  # of the few texts that are composed here


class Placed(NamedTuple):
    """A payload in its row. score: unix seconds at which it is due, or its lease runs out."""

    payload: bytes
    score: float


class QueueKey:
    """A part of a queue in its table, for one step. notify: its list of tokens, which is always empty. No row is locked
    beforehand."""

    def __init__(self, step: Step, jobs: JobSql, queue: str, spot: Spot, notify: bool = False) -> None:
        self.step, self.sql, self.queue, self.spot, self.notify = step, jobs, queue, spot, notify
        self.jobs, self.where = f"{jobs.jobs} j", f"j.queue = :queue AND {WHERE[spot]}"

    def _run(self, text: str, **values: Any) -> sql.CursorResult[Any]:
        return self.step.execute(clause(text), {"queue": self.queue, "now": int(self.step.now), **values})

    def add(self, payloads: Sequence[bytes], due_at: float = 0.0) -> None:
        """At the tail in this order, or to be due at `due_at`."""
        now = int(self.step.now)
        rows = [row_of(self.queue, payload, max(now, ceil(due_at)), now) for payload in payloads]
        self.step.execute(self.sql["insert"], rows if len(rows) > 1 else rows[0]).close()

    def count(self) -> int:
        return int(self._run(f"SELECT count(*) FROM {self.jobs} WHERE {self.where}").scalar_one())

    def page(self, first: int, most: int, *, tail: bool = False) -> list[Placed]:
        """At most `most` from place `first` (0: the next in line, or the first due), in order. tail: counted from the
        other end, and in that order."""
        down = " DESC" if tail else ""
        order, joined, columns = "j.available_at", "", "j.payload, j.available_at, j.reserved_at, j.attempts"
        if self.spot == "reserved":
            order, joined = "s.leased_until", f" LEFT JOIN {self.sql.ours} s ON {self.sql.same}"
            columns += ", s.mark, s.text_sum, s.leased_until"
        text = (
            f"SELECT {columns} FROM {self.jobs}{joined} WHERE {self.where}"
            f" ORDER BY {order}{down}, j.id{down} LIMIT :most OFFSET :first"
        )
        return [self._placed(row) for row in self._run(text, most=most, first=first)] if most > 0 else []

    def _placed(self, row: Any) -> Placed:
        payload = bytes_of(row.payload)
        if self.spot != "reserved":
            return Placed(payload, float(row.available_at))
        if row.mark is None:  # reserved by PHP
            return Placed(payload, float(row.reserved_at))
        return Placed(member_of(payload, row.mark, row.attempts, row.text_sum), row.leased_until / SECOND)

    def remove(self, most: int, payload: bytes | None = None, *, tail: bool = False) -> int:
        """Remove at most `most` rows, of exactly these bytes if given, from the front or (tail) from the end. Returns how
        many it has removed."""
        down, same = " DESC" if tail else "", "" if payload is None else f" AND j.payload = :payload{self.sql.exactly}"
        values = {} if payload is None else {"payload": payload.decode("utf-8", "surrogateescape")}
        text = (
            f"SELECT j.id FROM {self.jobs} WHERE {self.where}{same}"
            f" ORDER BY j.available_at{down}, j.id{down} LIMIT :most{self.sql.locked}"
        )
        ids = self._run(text, most=most, **values).scalars().all()
        return self.step.execute(self.sql["delete_free"], {"ids": list(ids)}).rowcount if ids else 0

    def wake(self) -> None:
        """Notify the workers that wait for this queue when the transaction commits, if the database can."""
        if self.sql.listens:
            self.step.execute(self.sql["notify"], {"channel": channel(self.sql.table, self.queue)}).close()


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
    lists = place.notify or place.spot == "ready"
    table = NOTIFY if place.notify else LISTS if lists else SETS if place.spot == "delayed" else RESERVED
    if command in table:
        return table[command](place, words)
    if command in (SETS if lists else LISTS):
        raise ServerRefused(WRONGTYPE)
    raise ServerRefused(f"ERR '{command}' is not supported for a queue in a database")


def count(place: QueueKey, _words: Words) -> int:
    return place.count()


def kind(place: QueueKey, _words: Words) -> StatusReply:
    word = b"list" if place.spot == "ready" else b"zset"
    return StatusReply(word if place.count() else b"none")


# -- ready


def push(place: QueueKey, words: Words) -> int:
    place.add(words)
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
    most = whole(words[0])
    return place.remove(abs(most) or ALL, words[1], tail=most < 0)


def ltrim(place: QueueKey, words: Words) -> StatusReply:
    first, last = whole(words[0]), whole(words[1])
    if first > 0 and last == -1:
        place.remove(first)
    elif first == 0 and last < -1:
        place.remove(-1 - last, tail=True)
    elif (first, last) != (0, -1):
        raise ServerRefused("ERR a queue in a database can be trimmed at one end only")
    return OK


# -- delayed and reserved


def zadd(place: QueueKey, words: Words) -> int:
    for score, payload in pairs(words):
        place.add((payload,), real(score))
    return len(words) // 2


def zrem(place: QueueKey, words: Words) -> int:
    return sum(place.remove(1, each) for each in words if each)


def zrange(place: QueueKey, words: Words) -> list[bytes]:
    found = page(place, whole(words[0]), whole(words[1]))
    return with_scores(found) if len(words) > 2 else [each.payload for each in found]


def zremrangebyrank(place: QueueKey, words: Words) -> int:
    first, last = whole(words[0]), whole(words[1])
    if first or last < 0:
        raise ServerRefused("ERR a queue in a database can be trimmed at its front only")
    return place.remove(last + 1)


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
LISTS: dict[str, Run] = {"TYPE": kind, "LLEN": count, "LINDEX": lindex, "LRANGE": lrange}
LISTS |= {"RPUSH": push, "LREM": lrem, "LTRIM": ltrim}
RESERVED: dict[str, Run] = {"TYPE": kind, "ZCARD": count, "ZRANGE": zrange, "ZSCAN": zscan}
SETS: dict[str, Run] = {**RESERVED, "ZADD": zadd, "ZREM": zrem, "ZREMRANGEBYRANK": zremrangebyrank}
NOTIFY: dict[str, Run] = {"TYPE": kind, "LLEN": count, "RPUSH": wake, "LPOP": lambda *_: None, "LTRIM": lambda *_: OK}
