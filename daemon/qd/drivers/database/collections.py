"""Redis commands on hashes, sets, lists and sorted sets. Those on names of queues are in queue_keys.py."""

from __future__ import annotations

from typing import Any

from qd.drivers.database import items
from qd.drivers.database.items import (
    OK,
    SYNTAX,
    Commands,
    RedisCommand,
    Run,
    StatusReply,
    Words,
    bound,
    cursor_of,
    cursor_text,
    options,
    pairs,
    real,
    score_text,
    whole,
    with_scores,
)
from qd.drivers.database.transaction import Step
from qd.errors import ServerRefused

HASH, SET, LIST, ZSET = "hash", "set", "list", "zset"


# -- the same on several kinds


def size_of(kind: str) -> Run:
    return lambda step, words: step.get(words[0], kind).size


def removal(kind: str) -> Run:
    return lambda step, words: items.take(step, step.get(words[0], kind), words[1:])


def members(kind: str) -> Run:
    return lambda step, words: [each.item for each in items.every(step, step.get(words[0], kind))]


def scan(kind: str) -> Run:
    """HSCAN or ZSCAN name cursor [COUNT n]"""

    def run(step: Step, words: Words) -> list[Any]:
        name, most = step.get(words[0], kind), whole(options(words[2:]).get(b"COUNT", b"10"))
        found = items.after(step, name, cursor_of(words[1]), most) if name.size else []
        following = cursor_text(found[-1][0]) if len(found) == most else b"0"
        if kind == ZSET:
            return [following, with_scores(each for _, each in found)]
        return [following, [part for _, each in found for part in (each.item, each.value)]]

    return run


# -- hashes and sets


def hset(step: Step, words: Words) -> int:
    fields = dict(pairs(words[1:]))
    return items.put(step, step.change(words[0], HASH), {field: (0.0, value) for field, value in fields.items()})


def hmget(step: Step, words: Words) -> list[bytes | None]:
    found = items.some(step, step.get(words[0], HASH), words[1:])
    return [found[field].value if field in found else None for field in words[1:]]


def hgetall(step: Step, words: Words) -> list[bytes | None]:
    return [part for each in items.every(step, step.get(words[0], HASH)) for part in (each.item, each.value)]


def hincrby(step: Step, words: Words) -> int:
    name = step.change(words[0], HASH)
    found = items.some(step, name, words[1:2]).get(words[1])
    try:
        number = (whole(found.value or b"") if found else 0) + whole(words[2])
    except ServerRefused:
        raise ServerRefused("ERR hash value is not an integer") from None
    items.put(step, name, {words[1]: (0.0, b"%d" % number)})
    return number


def sadd(step: Step, words: Words) -> int:
    name = step.change(words[0], SET)
    new = [member for member in dict.fromkeys(words[1:]) if member not in items.some(step, name, words[1:])]
    return items.put(step, name, dict.fromkeys(new, (0.0, None)))


# -- lists


def push(*, head: bool) -> Run:
    def run(step: Step, words: Words) -> int:
        name = step.change(words[0], LIST)
        first, last = items.ends(step, name)
        places = [first - number if head else last + number for number in range(1, len(words))]
        pairs = zip(places, words[1:], strict=True)
        items.add(step, name, {b"%.0f" % place: (place, value) for place, value in pairs})
        step.notify(name.name)
        return name.size

    return run


def lpop(step: Step, words: Words) -> bytes | None:
    name = step.get(words[0], LIST)
    first = items.by_rank(step, name, 0, 0)
    items.take(step, name, [each.item for each in first])
    return first[0].value if first else None


def lindex(step: Step, words: Words) -> bytes | None:
    name, at = step.get(words[0], LIST), whole(words[1])
    if not -name.size <= at < name.size:
        return None
    return items.by_rank(step, name, at, at)[0].value


def lrange(step: Step, words: Words) -> list[bytes | None]:
    found = items.by_rank(step, step.get(words[0], LIST), whole(words[1]), whole(words[2]))
    return [each.value for each in found]


def lrem(step: Step, words: Words) -> int:
    name, count = step.get(words[0], LIST), whole(words[1])
    if not name.size:
        return 0
    found = items.equal(step, name, words[2], abs(count), down=count < 0)
    return items.take(step, name, [each.item for each in found])


def ltrim(step: Step, words: Words) -> StatusReply:
    """LTRIM name first last"""
    name = step.get(words[0], LIST)
    first, most = items.ranks(whole(words[1]), whole(words[2]), name.size)
    if not most:
        step.remove(words[0])
    elif most < name.size:
        low, high = (items.by_rank(step, name, at, at)[0].score for at in (first, first + most - 1))
        items.take_by_score(step, name, items.LOWEST, items.Bound(low, True))
        items.take_by_score(step, name, items.Bound(high, True), items.HIGHEST)
    return OK


# -- sorted sets


def zadd(step: Step, words: Words) -> int:
    """ZADD name [XX | NX] [CH] score member ..."""
    name, *rest = words
    only_old, only_new = (rest[0].upper() == word for word in (b"XX", b"NX"))
    rest = rest[1:] if only_old or only_new else rest
    changed = rest[0].upper() == b"CH"
    added = pairs(rest[1:] if changed else rest)
    # If a member is given twice, the last score counts; with NX the first, since the member is not new any more.
    scores = {member: real(score) for score, member in (reversed(added) if only_new else added)}
    found = step.get(name, ZSET) if only_old else step.change(name, ZSET)
    old = items.some(step, found, scores)
    new = {each: score for each, score in scores.items() if not (only_new if each in old else only_old)}
    new = {each: score for each, score in new.items() if each not in old or old[each].score != score}
    count = items.put(step, found, {each: (score, None) for each, score in new.items()})
    return len(new) if changed else count


def zscore(step: Step, words: Words) -> bytes | None:
    found = items.some(step, step.get(words[0], ZSET), words[1:2])
    return score_text(found[words[1]].score) if found else None


def zrank(step: Step, words: Words) -> int | None:
    name = step.get(words[0], ZSET)
    found = items.some(step, name, words[1:2])
    return items.rank_of(step, name, found[words[1]]) if found else None


def zrange(step: Step, words: Words) -> list[bytes]:
    """ZRANGE name first last [WITHSCORES]"""
    rest = [each.upper() for each in words[3:]]
    if rest not in ([], [b"WITHSCORES"]):
        raise ServerRefused(SYNTAX)
    found = items.by_rank(step, step.get(words[0], ZSET), whole(words[1]), whole(words[2]))
    return with_scores(found) if rest else [each.item for each in found]


def by_score(*, down: bool) -> Run:
    """ZRANGEBYSCORE name low high [WITHSCORES] [LIMIT first most]; ZREVRANGEBYSCORE has high before low."""

    def run(step: Step, words: Words) -> list[bytes]:
        name, *bounds = words[:3]
        low, high = map(bound, reversed(bounds) if down else bounds)
        rest, scores, first, most = list(words[3:]), False, 0, None
        while rest:
            option = rest.pop(0).upper()
            if option == b"WITHSCORES":
                scores = True
            elif option == b"LIMIT" and len(rest) > 1:
                first, count = whole(rest.pop(0)), whole(rest.pop(0))
                most = None if count < 0 else count
            else:
                raise ServerRefused(SYNTAX)
        found = items.by_score(step, step.get(name, ZSET), low, high, first, most, down=down)
        return with_scores(found) if scores else [each.item for each in found]

    return run


def zremrangebyscore(step: Step, words: Words) -> int:
    return items.take_by_score(step, step.get(words[0], ZSET), bound(words[1]), bound(words[2]))


def zremrangebyrank(step: Step, words: Words) -> int:
    name = step.get(words[0], ZSET)
    found = items.by_rank(step, name, whole(words[1]), whole(words[2]))
    return items.take(step, name, [each.item for each in found])


COMMANDS: Commands = {
    "HSET": RedisCommand(hset, True, 1, 3),
    "HGET": RedisCommand(lambda step, words: hmget(step, words[:2])[0], False, 1, 2),
    "HMGET": RedisCommand(hmget, False, 1, 2),
    "HEXISTS": RedisCommand(
        lambda step, words: len(items.some(step, step.get(words[0], HASH), words[1:2])), False, 1, 2
    ),
    "HSTRLEN": RedisCommand(lambda step, words: items.length(step, step.get(words[0], HASH), words[1]), False, 1, 2),
    "HDEL": RedisCommand(removal(HASH), True, 1, 2),
    "HGETALL": RedisCommand(hgetall, False),
    "HKEYS": RedisCommand(members(HASH), False),
    "HLEN": RedisCommand(size_of(HASH), False),
    "HINCRBY": RedisCommand(hincrby, True, 1, 3),
    "HSCAN": RedisCommand(scan(HASH), False, 1, 2),
    "SADD": RedisCommand(sadd, True, 1, 2),
    "SREM": RedisCommand(removal(SET), True, 1, 2),
    "SCARD": RedisCommand(size_of(SET), False),
    "SMEMBERS": RedisCommand(members(SET), False),
    "RPUSH": RedisCommand(push(head=False), True, 1, 2),
    "LPUSH": RedisCommand(push(head=True), True, 1, 2),
    "LPOP": RedisCommand(lpop, True),
    "LLEN": RedisCommand(size_of(LIST), False),
    "LINDEX": RedisCommand(lindex, False, 1, 2),
    "LRANGE": RedisCommand(lrange, False, 1, 3),
    "LREM": RedisCommand(lrem, True, 1, 3),
    "LTRIM": RedisCommand(ltrim, True, 1, 3),
    "ZADD": RedisCommand(zadd, True, 1, 3),
    "ZREM": RedisCommand(removal(ZSET), True, 1, 2),
    "ZSCORE": RedisCommand(zscore, False, 1, 2),
    "ZCARD": RedisCommand(size_of(ZSET), False),
    "ZRANK": RedisCommand(zrank, False, 1, 2),
    "ZRANGE": RedisCommand(zrange, False, 1, 3),
    "ZRANGEBYSCORE": RedisCommand(by_score(down=False), False, 1, 3),
    "ZREVRANGEBYSCORE": RedisCommand(by_score(down=True), False, 1, 3),
    "ZREMRANGEBYSCORE": RedisCommand(zremrangebyscore, True, 1, 3),
    "ZREMRANGEBYRANK": RedisCommand(zremrangebyrank, True, 1, 3),
    "ZSCAN": RedisCommand(scan(ZSET), False, 1, 2),
}
