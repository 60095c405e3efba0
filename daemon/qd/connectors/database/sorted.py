"""Commands on sorted sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qd.connectors.database import items
from qd.connectors.database.items import Item
from qd.connectors.database.step import Step
from qd.connectors.database.words import (
    SYNTAX,
    Command,
    Commands,
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
from qd.errors import ServerRefused

ZSET = "zset"


def zadd(step: Step, words: Words) -> int:
    """ZADD name [XX | NX] score member ..."""
    name, *rest = words
    only_old, only_new = (rest[0].upper() == word for word in (b"XX", b"NX"))
    added = pairs(rest[1:] if only_old or only_new else rest)
    # Of a member that is named twice the last score counts; with NX the first, since the member is no longer new then.
    scores = {member: real(score) for score, member in (reversed(added) if only_new else added)}
    found = step.look(name, ZSET) if only_old else step.change(name, ZSET)
    old = items.some(step, found, scores)
    new = {each: score for each, score in scores.items() if not (only_new if each in old else only_old)}
    new = {each: score for each, score in new.items() if each not in old or old[each].score != score}
    return items.put(step, found, {each: (score, None) for each, score in new.items()})


def zrem(step: Step, words: Words) -> int:
    return items.take(step, step.look(words[0], ZSET), words[1:])


def zscore(step: Step, words: Words) -> bytes | None:
    found = items.some(step, step.look(words[0], ZSET), words[1:2])
    return score_text(found[words[1]].score) if found else None


def zcard(step: Step, words: Words) -> int:
    return step.look(words[0], ZSET).size


def zrank(step: Step, words: Words) -> int | None:
    name = step.look(words[0], ZSET)
    found = items.some(step, name, words[1:2])
    return items.rank_of(step, name, found[words[1]]) if found else None


def told(found: Iterable[Item], scores: bool) -> list[bytes]:
    return [part for each in found for part in ((each.item, score_text(each.score)) if scores else (each.item,))]


def zrange(step: Step, words: Words) -> list[bytes]:
    """ZRANGE name first last [WITHSCORES]"""
    rest = [each.upper() for each in words[3:]]
    if rest not in ([], [b"WITHSCORES"]):
        raise ServerRefused(SYNTAX)
    return told(items.by_rank(step, step.look(words[0], ZSET), whole(words[1]), whole(words[2])), bool(rest))


def zrangebyscore(step: Step, words: Words) -> list[bytes]:
    """ZRANGEBYSCORE name low high [WITHSCORES] [LIMIT first most]"""
    return ranged(step, words[0], words[1], words[2], words[3:], down=False)


def zrevrangebyscore(step: Step, words: Words) -> list[bytes]:
    return ranged(step, words[0], words[2], words[1], words[3:], down=True)


def ranged(step: Step, name: bytes, low: bytes, high: bytes, rest: Words, *, down: bool) -> list[bytes]:
    scores, first, most = limits(rest)
    found = items.by_score(step, step.look(name, ZSET), bound(low), bound(high), first, most, down=down)
    return told(found, scores)


def limits(words: Words) -> tuple[bool, int, int | None]:
    """WITHSCORES, and where LIMIT begins and how many it lets through; None: all."""
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
    return items.take_by_score(step, step.look(words[0], ZSET), bound(words[1]), bound(words[2]))


def zremrangebyrank(step: Step, words: Words) -> int:
    name = step.look(words[0], ZSET)
    found = items.by_rank(step, name, whole(words[1]), whole(words[2]))
    return items.take(step, name, [each.item for each in found])


def zscan(step: Step, words: Words) -> list[Any]:
    name, most = step.look(words[0], ZSET), whole(options(words[2:]).get(b"COUNT", b"10"))
    found = items.after(step, name, cursor_of(words[1]), most) if name.size else []
    following = cursor_text(found[-1][0]) if len(found) == most else b"0"
    return [following, told([each for _, each in found], True)]


COMMANDS: Commands = {
    "ZADD": Command(zadd, True, 1, 3),
    "ZREM": Command(zrem, True, 1, 2),
    "ZSCORE": Command(zscore, False, 1, 2),
    "ZCARD": Command(zcard, False),
    "ZRANK": Command(zrank, False, 1, 2),
    "ZRANGE": Command(zrange, False, 1, 3),
    "ZRANGEBYSCORE": Command(zrangebyscore, False, 1, 3),
    "ZREVRANGEBYSCORE": Command(zrevrangebyscore, False, 1, 3),
    "ZREMRANGEBYSCORE": Command(zremrangebyscore, True, 1, 3),
    "ZREMRANGEBYRANK": Command(zremrangebyrank, True, 1, 3),
    "ZSCAN": Command(zscan, False, 1, 2),
}
