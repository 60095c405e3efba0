"""Commands on the names of queues, which are rows of the table of jobs (JobRows).

queues:Q            list   ready        LPUSH and RPUSH return how many were pushed, not the length
queues:Q:delayed    zset   delayed
queues:Q:reserved   zset   reserved     only a worker reserves: ZADD needs XX
queues:Q:notify     list   empty        a push wakes waiting workers; its length is that of ready

LISTS, SETS and NOTIFY, at the end, list the commands on each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
from qd.drivers.database.rows import JobRows, Placed, Spot
from qd.drivers.database.transaction import WRONGTYPE, Step
from qd.errors import ServerRefused
from qd.options.kinds import QUEUE_SUFFIXES

QUEUES, NOTIFY_END = b"queues:", b":notify"
SPOTS: dict[bytes, Spot] = {b":delayed": "delayed", b":reserved": "reserved", NOTIFY_END: "ready"}
OTHERS = tuple(ending.encode() for ending in QUEUE_SUFFIXES)


class QueueKey(NamedTuple):
    """A part of a queue in its table. notify: its list of tokens, which is always empty."""

    jobs: JobRows
    queue: str
    spot: Spot
    notify: bool = False


def place_of(step: Step, name: bytes) -> QueueKey | None:
    """The queue that the name means, or None for any other name."""
    if step.jobs is None or not name.startswith(step.prefix + QUEUES):
        return None
    body = name[len(step.prefix) + len(QUEUES) :]
    for ending, spot in SPOTS.items():
        if body.endswith(ending):
            queue = body.removesuffix(ending).decode("utf-8", "surrogateescape")
            return QueueKey(step.jobs, queue, spot, ending == NOTIFY_END)
    if body.endswith(OTHERS) or not body:
        return None
    return QueueKey(step.jobs, body.decode("utf-8", "surrogateescape"), "ready")


def names(step: Step) -> list[bytes]:
    """`queues:Q` of every queue that has a row."""
    found = step.jobs.queues(step) if step.jobs is not None else []
    return [step.prefix + QUEUES + name.encode("utf-8", "surrogateescape") for name in found]


def run(step: Step, place: QueueKey, command: str, words: Words) -> Any:
    """words: without the name. Raises ServerRefused."""
    step.open(())
    table = NOTIFY if place.notify else LISTS if place.spot == "ready" else SETS
    if command in table:
        return table[command](step, place, words)
    if command in LISTS or command in SETS:
        raise ServerRefused(WRONGTYPE)
    raise ServerRefused(f"ERR '{command}' is not supported for a queue in a database")


def count(step: Step, place: QueueKey, _words: Words = ()) -> int:
    return place.jobs.count(step, place.queue, place.spot)


def exists(step: Step, place: QueueKey, _words: Words) -> int:
    return int(count(step, place) > 0)


def kind(step: Step, place: QueueKey, _words: Words) -> StatusReply:
    word = b"list" if place.spot == "ready" else b"zset"
    return StatusReply(word if count(step, place) else b"none")


# -- ready


def push(step: Step, place: QueueKey, words: Words, *, head: bool) -> int:
    place.jobs.add(step, place.queue, words, None, head=head)
    return len(words)


def page(step: Step, place: QueueKey, first: int, last: int) -> list[Placed]:
    """A range as in Redis: from the end if negative, both included."""
    if first < 0 and last < 0:
        return place.jobs.page(step, place.queue, place.spot, -last - 1, last - first + 1, tail=True)[::-1]
    most = last - first + 1
    if first < 0 or last < 0:
        first, most = ranks(first, last, count(step, place))
    return place.jobs.page(step, place.queue, place.spot, first, most, tail=False)


def lindex(step: Step, place: QueueKey, words: Words) -> bytes | None:
    at = whole(words[0])
    found = page(step, place, at, at)
    return found[0].payload if found else None


def lrange(step: Step, place: QueueKey, words: Words) -> list[bytes]:
    return [each.payload for each in page(step, place, whole(words[0]), whole(words[1]))]


def lrem(step: Step, place: QueueKey, words: Words) -> int:
    most, gone = whole(words[0]), 0
    while (gone < abs(most) or not most) and place.jobs.remove(step, place.queue, "ready", words[1], tail=most < 0):
        gone += 1
    return gone


def lpop(step: Step, place: QueueKey, _words: Words) -> bytes | None:
    found = place.jobs.page(step, place.queue, "ready", 0, 1, tail=False)
    if not found or not place.jobs.remove(step, place.queue, "ready", found[0].payload, tail=False):
        return None
    return found[0].payload


def ltrim(step: Step, place: QueueKey, words: Words) -> StatusReply:
    first, last = whole(words[0]), whole(words[1])
    if first > 0 and last == -1:
        place.jobs.cut(step, place.queue, "ready", first, tail=False)
    elif first == 0 and last < -1:
        place.jobs.cut(step, place.queue, "ready", -1 - last, tail=True)
    elif (first, last) != (0, -1):
        raise ServerRefused("ERR a queue in a database can be trimmed at one end only")
    return OK


# -- delayed and reserved


def zadd(step: Step, place: QueueKey, words: Words) -> int:
    only_old, changed = words[0].upper() == b"XX", 0
    words = words[1:] if only_old else words
    counts = words[0].upper() == b"CH"
    for score, payload in pairs(words[1:] if counts else words):
        if place.spot == "reserved":
            if not only_old:
                raise ServerRefused("ERR only a worker can reserve a job in a database")
            changed += place.jobs.lease(step, place.queue, payload, real(score))
        else:
            place.jobs.add(step, place.queue, (payload,), real(score), head=False)
    return changed if counts else 0 if only_old else len(words) // 2


def zrem(step: Step, place: QueueKey, words: Words) -> int:
    return sum(place.jobs.remove(step, place.queue, place.spot, each, tail=False) for each in words if each)


def zscore(step: Step, place: QueueKey, words: Words) -> bytes | None:
    found = place.jobs.score(step, place.queue, place.spot, words[0])
    return None if found is None else score_text(found)


def zrange(step: Step, place: QueueKey, words: Words) -> list[bytes]:
    found = page(step, place, whole(words[0]), whole(words[1]))
    return with_scores(found) if len(words) > 2 else [each.payload for each in found]


def zrangebyscore(step: Step, place: QueueKey, words: Words) -> list[bytes]:
    """From -inf only."""
    rest = [each.upper() for each in words[2:]]
    most = whole(words[2 + rest.index(b"LIMIT") + 2]) if b"LIMIT" in rest else 2**31 - 1
    if words[0] != b"-inf":
        raise ServerRefused("ERR a queue in a database can be read from its first job only")
    found = place.jobs.until(step, place.queue, place.spot, bound(words[1]).score, most)
    return with_scores(found) if b"WITHSCORES" in rest else [each.payload for each in found]


def zremrangebyrank(step: Step, place: QueueKey, words: Words) -> int:
    first, last = whole(words[0]), whole(words[1])
    if first == 0 and last >= 0:
        place.jobs.cut(step, place.queue, place.spot, last + 1, tail=False)
    elif not first > last >= 0:
        raise ServerRefused("ERR a queue in a database can be trimmed at its front only")
    return max(0, last + 1 - first)


def zscan(step: Step, place: QueueKey, words: Words) -> list[Any]:
    """By place: jobs that move meanwhile may be missed."""
    at, most = whole(words[0]), whole(options(words[1:]).get(b"COUNT", b"10"))
    found = place.jobs.page(step, place.queue, place.spot, at, most, tail=False)
    return [b"%d" % (at + most) if len(found) == most else b"0", with_scores(found)]


# -- tokens


def wake(step: Step, place: QueueKey, words: Words) -> int:
    place.jobs.wake(step, place.queue)
    return len(words)


Run = Callable[[Step, QueueKey, Words], Any]
ANY: dict[str, Run] = {"EXISTS": exists, "TYPE": kind}
LISTS: dict[str, Run] = {
    **ANY,
    "RPUSH": lambda step, place, words: push(step, place, words, head=False),
    "LPUSH": lambda step, place, words: push(step, place, words, head=True),
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
