"""Redis commands on hashes, sets, lists and sorted sets. Those on names of queues are in queue_keys.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qd.drivers.database import items
from qd.drivers.database.items import (
    OK,
    SYNTAX,
    Commands,
    Item,
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
)
from qd.drivers.database.transaction import Name, Step
from qd.errors import ServerRefused

HASH, SET, LIST, ZSET = "hash", "set", "list", "zset"


# -- the same on several kinds


def size_of(kind: str) -> Run:
    return lambda step, words: step.get(words[0], kind).size


def removal(kind: str) -> Run:
    return lambda step, words: items.take(step, step.get(words[0], kind), words[1:])


def members(kind: str) -> Run:
    return lambda step, words: [each.item for each in items.every(step, step.get(words[0], kind))]


# -- hashes and sets


def hset(step: Step, words: Words) -> int:
    fields = dict(pairs(words[1:]))
    return items.put(step, step.change(words[0], HASH), {field: (0.0, value) for field, value in fields.items()})


def hget(step: Step, words: Words) -> bytes | None:
    return hmget(step, words[:2])[0]


def hmget(step: Step, words: Words) -> list[bytes | None]:
    found = items.some(step, step.get(words[0], HASH), words[1:])
    return [found[field].value if field in found else None for field in words[1:]]


def hexists(step: Step, words: Words) -> int:
    return int(bool(items.some(step, step.get(words[0], HASH), words[1:2])))


def hstrlen(step: Step, words: Words) -> int:
    name = step.get(words[0], HASH)
    return items.length(step, name, words[1]) if name.size else 0


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


def hscan(step: Step, words: Words) -> list[Any]:
    following, found = scanned(step, step.get(words[0], HASH), words)
    return [following, [part for each in found for part in (each.item, each.value)]]


def scanned(step: Step, name: Name, words: Words) -> tuple[bytes, list[Item]]:
    """NAME cursor [COUNT n]: the next cursor, and the items."""
    most = whole(options(words[2:]).get(b"COUNT", b"10"))
    found = items.after(step, name, cursor_of(words[1]), most) if name.size else []
    following = cursor_text(found[-1][0]) if len(found) == most else b"0"
    return following, [each for _, each in found]


def sadd(step: Step, words: Words) -> int:
    name = step.change(words[0], SET)
    new = [member for member in dict.fromkeys(words[1:]) if member not in items.some(step, name, words[1:])]
    return items.put(step, name, dict.fromkeys(new, (0.0, None)))


# -- lists


def rpush(step: Step, words: Words) -> int:
    name = step.change(words[0], LIST)
    last = items.ends(step, name)[1]
    return pushed(step, name, {last + number: value for number, value in enumerate(words[1:], 1)})


def lpush(step: Step, words: Words) -> int:
    name = step.change(words[0], LIST)
    first = items.ends(step, name)[0]
    return pushed(step, name, {first - number: value for number, value in enumerate(words[1:], 1)})


def pushed(step: Step, name: Name, values: dict[float, bytes]) -> int:
    items.add(step, name, {b"%.0f" % place: (place, value) for place, value in values.items()})
    step.notify(name.name)
    return name.size


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
    """ZADD name [XX | NX] score member ..."""
    name, *rest = words
    only_old, only_new = (rest[0].upper() == word for word in (b"XX", b"NX"))
    added = pairs(rest[1:] if only_old or only_new else rest)
    # If a member is given twice, the last score counts; with NX the first, since the member is not new any more.
    scores = {member: real(score) for score, member in (reversed(added) if only_new else added)}
    found = step.get(name, ZSET) if only_old else step.change(name, ZSET)
    old = items.some(step, found, scores)
    new = {each: score for each, score in scores.items() if not (only_new if each in old else only_old)}
    new = {each: score for each, score in new.items() if each not in old or old[each].score != score}
    return items.put(step, found, {each: (score, None) for each, score in new.items()})


def zscore(step: Step, words: Words) -> bytes | None:
    found = items.some(step, step.get(words[0], ZSET), words[1:2])
    return score_text(found[words[1]].score) if found else None


def zrank(step: Step, words: Words) -> int | None:
    name = step.get(words[0], ZSET)
    found = items.some(step, name, words[1:2])
    return items.rank_of(step, name, found[words[1]]) if found else None


def members_of(found: Iterable[Item], scores: bool) -> list[bytes]:
    return [part for each in found for part in ((each.item, score_text(each.score)) if scores else (each.item,))]


def zrange(step: Step, words: Words) -> list[bytes]:
    """ZRANGE name first last [WITHSCORES]"""
    rest = [each.upper() for each in words[3:]]
    if rest not in ([], [b"WITHSCORES"]):
        raise ServerRefused(SYNTAX)
    return members_of(items.by_rank(step, step.get(words[0], ZSET), whole(words[1]), whole(words[2])), bool(rest))


def zrangebyscore(step: Step, words: Words) -> list[bytes]:
    """ZRANGEBYSCORE name low high [WITHSCORES] [LIMIT first most]"""
    return ranged(step, words[0], words[1], words[2], words[3:], down=False)


def zrevrangebyscore(step: Step, words: Words) -> list[bytes]:
    return ranged(step, words[0], words[2], words[1], words[3:], down=True)


def ranged(step: Step, name: bytes, low: bytes, high: bytes, rest: Words, *, down: bool) -> list[bytes]:
    scores, first, most = limits(rest)
    found = items.by_score(step, step.get(name, ZSET), bound(low), bound(high), first, most, down=down)
    return members_of(found, scores)


def limits(words: Words) -> tuple[bool, int, int | None]:
    """WITHSCORES, and the first place and number of LIMIT (None: all)."""
    rest, scores, first, most = list(words), False, 0, None
    while rest:
        option = rest.pop(0).upper()
        if option == b"WITHSCORES":
            scores = True
        elif option == b"LIMIT" and len(rest) > 1:
            first, count = whole(rest.pop(0)), whole(rest.pop(0))
            most = None if count < 0 else count
        else:
            raise ServerRefused(SYNTAX)
    return scores, first, most


def zremrangebyscore(step: Step, words: Words) -> int:
    return items.take_by_score(step, step.get(words[0], ZSET), bound(words[1]), bound(words[2]))


def zremrangebyrank(step: Step, words: Words) -> int:
    name = step.get(words[0], ZSET)
    found = items.by_rank(step, name, whole(words[1]), whole(words[2]))
    return items.take(step, name, [each.item for each in found])


def zscan(step: Step, words: Words) -> list[Any]:
    following, found = scanned(step, step.get(words[0], ZSET), words)
    return [following, members_of(found, True)]


COMMANDS: Commands = {
    "HSET": RedisCommand(hset, True, 1, 3),
    "HGET": RedisCommand(hget, False, 1, 2),
    "HMGET": RedisCommand(hmget, False, 1, 2),
    "HEXISTS": RedisCommand(hexists, False, 1, 2),
    "HSTRLEN": RedisCommand(hstrlen, False, 1, 2),
    "HDEL": RedisCommand(removal(HASH), True, 1, 2),
    "HGETALL": RedisCommand(hgetall, False),
    "HKEYS": RedisCommand(members(HASH), False),
    "HLEN": RedisCommand(size_of(HASH), False),
    "HINCRBY": RedisCommand(hincrby, True, 1, 3),
    "HSCAN": RedisCommand(hscan, False, 1, 2),
    "SADD": RedisCommand(sadd, True, 1, 2),
    "SREM": RedisCommand(removal(SET), True, 1, 2),
    "SCARD": RedisCommand(size_of(SET), False),
    "SMEMBERS": RedisCommand(members(SET), False),
    "RPUSH": RedisCommand(rpush, True, 1, 2),
    "LPUSH": RedisCommand(lpush, True, 1, 2),
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
    "ZRANGEBYSCORE": RedisCommand(zrangebyscore, False, 1, 3),
    "ZREVRANGEBYSCORE": RedisCommand(zrevrangebyscore, False, 1, 3),
    "ZREMRANGEBYSCORE": RedisCommand(zremrangebyscore, True, 1, 3),
    "ZREMRANGEBYRANK": RedisCommand(zremrangebyrank, True, 1, 3),
    "ZSCAN": RedisCommand(zscan, False, 1, 2),
}
