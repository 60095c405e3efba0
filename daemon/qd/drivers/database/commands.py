"""The Redis commands of the keyspace on tables, by name. Those on names of queues are in queue_keys.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sql

from qd.drivers.database import queue_keys, schema
from qd.drivers.database.names import (
    MOST,
    OK,
    SYNTAX,
    Item,
    StatusReply,
    Words,
    bound,
    cursor_of,
    cursor_text,
    options,
    pairs,
    score_text,
    whole,
    with_scores,
)
from qd.drivers.database.transaction import Step
from qd.errors import ServerRefused

HASH, SET, LIST, ZSET = "hash", "set", "list", "zset"
Run = Callable[[Step, Words], Any]


class RedisCommand(NamedTuple):
    """names: how many of the first words are names; -1: all. least: the fewest words it accepts."""

    run: Run
    writes: bool
    names: int = 1
    least: int = 1

    def names_in(self, words: Words) -> Words:
        """words: they start with the command."""
        return words[1:] if self.names < 0 else words[1 : 1 + self.names]


# -- strings, and names of any kind


def mget(step: Step, words: Words) -> list[bytes | None]:
    step.open(words)
    return [found.value if (found := step.get(name)).kind == "string" else None for name in words]


def set_(step: Step, words: Words) -> StatusReply | None:
    """SET name value [NX] [EX seconds | PX ms]"""
    name, value, *rest = words
    only_new, expires_at = False, None
    while rest:
        option = rest.pop(0).upper()
        if option == b"NX":
            only_new = True
        elif option in (b"EX", b"PX") and rest:
            span = whole(rest.pop(0))
            if span <= 0:
                raise ServerRefused("ERR invalid expire time in 'set' command")
            expires_at = step.now_us + span * (1_000_000 if option == b"EX" else 1000)
        else:
            raise ServerRefused(SYNTAX)
    found = step.get(name)
    if only_new and found.kind:
        return None
    if found.kind != "string":
        found.clear()
    found = step.change(name, "string")
    found.value, found.size, found.expires_at = value, 1, expires_at
    return OK


def exists(step: Step, words: Words) -> int:
    step.open(words)
    return sum(bool(step.get(name).count()) for name in words)


def delete(step: Step, words: Words) -> int:
    step.open(words)
    return sum([step.get(name).clear() for name in words])


def type_(step: Step, words: Words) -> StatusReply:
    found = step.get(words[0])
    return StatusReply(found.kind.encode() if found.count() else b"none")


def pexpire(step: Step, words: Words) -> int:
    found, span = step.get(words[0]), whole(words[1])
    if not found.kind:
        return 0
    if span <= 0:
        found.clear()
    else:
        found.expire(step.now_us + 1000 * span)
    return 1


def pttl(step: Step, words: Words) -> int:
    found = step.get(words[0])
    if not found.kind:
        return -2
    return -1 if found.expires_at is None else -(-(found.expires_at - step.now_us) // 1000)


def time(step: Step, _words: Words) -> list[bytes]:
    step.open(())
    return [b"%d" % (step.now_us // 1_000_000), b"%d" % (step.now_us % 1_000_000)]


def scan(step: Step, words: Words) -> list[Any]:
    """SCAN cursor [MATCH start*] [COUNT n]; names of queues with rows come with the first piece."""
    given = options(words[1:])
    pattern, most, after = given.get(b"MATCH", b"*"), whole(given.get(b"COUNT", b"10")), cursor_of(words[0])
    if not re.fullmatch(rb"(?:[^*?\[\\]|\\.)*\*", pattern, re.DOTALL):
        raise ServerRefused("ERR a database can match the start of names only")
    start, columns = re.sub(rb"\\(.)", rb"\1", pattern[:-1], flags=re.DOTALL), schema.names.c
    low = start[: schema.LONGEST]
    step.open(())
    query = sql.select(columns.name, columns.whole, columns.expires_at).order_by(columns.name).limit(most)
    query = query.where(columns.name >= low if after is None else columns.name > after)
    if kept := low.rstrip(b"\xff"):  # up to the first name after all that start like this
        query = query.where(columns.name < kept[:-1] + bytes([kept[-1] + 1]))
    rows = list(step.execute(query))
    names = [bytes(row.whole or row.name) for row in rows if row.expires_at is None or row.expires_at > step.now_us]
    names += queue_keys.names(step) if after is None else []
    following = cursor_text(bytes(rows[-1].name)) if len(rows) == most else b"0"
    return [following, [name for name in names if name.startswith(start)]]


# -- the same on several kinds


def size_of(kind: str) -> Run:
    return lambda step, words: step.get(words[0], kind).count()


def flat(found: Iterable[Item]) -> list[bytes | None]:
    """Fields, each followed by its value."""
    return [part for each in found for part in (each.item, each.value)]


def removal(kind: str) -> Run:
    return lambda step, words: step.get(words[0], kind).take(words[1:])


def members(kind: str) -> Run:
    return lambda step, words: [each.item for each in step.get(words[0], kind).every()]


def scan_items(kind: str) -> Run:
    """HSCAN or ZSCAN name cursor [COUNT n]"""

    def run(step: Step, words: Words) -> list[Any]:
        name, most = step.get(words[0], kind), whole(options(words[2:]).get(b"COUNT", b"10"))
        key, found = name.after(cursor_of(words[1]), most)
        following = b"0" if key is None else cursor_text(key)
        return [following, with_scores(found) if kind == ZSET else flat(found)]

    return run


# -- hashes and sets


def hset(step: Step, words: Words) -> int:
    fields = dict(pairs(words[1:]))
    return step.change(words[0], HASH).put({field: (0.0, value) for field, value in fields.items()})


def hmget(step: Step, words: Words) -> list[bytes | None]:
    found = step.get(words[0], HASH).some(words[1:])
    return [found[field].value if field in found else None for field in words[1:]]


def hincrby(step: Step, words: Words) -> int:
    name = step.change(words[0], HASH)
    found = name.some(words[1:2]).get(words[1])
    try:
        number = (whole(found.value or b"") if found else 0) + whole(words[2])
    except ServerRefused:
        raise ServerRefused("ERR hash value is not an integer") from None
    name.put({words[1]: (0.0, b"%d" % number)})
    return number


def sadd(step: Step, words: Words) -> int:
    name = step.change(words[0], SET)
    old = name.some(words[1:])
    return name.put({member: (0.0, None) for member in words[1:] if member not in old})


# -- lists


def push(*, head: bool) -> Run:
    return lambda step, words: step.change(words[0], LIST).push(words[1:], head=head)


def lpop(step: Step, words: Words) -> bytes | None:
    name = step.get(words[0], LIST)
    first = name.by_rank(0, 0)
    name.take([each.item for each in first])
    return first[0].value if first else None


def lindex(step: Step, words: Words) -> bytes | None:
    found = step.get(words[0], LIST).by_rank(whole(words[1]), whole(words[1]))
    return found[0].value if found else None


def lrange(step: Step, words: Words) -> list[bytes | None]:
    found = step.get(words[0], LIST).by_rank(whole(words[1]), whole(words[2]))
    return [each.value for each in found]


def lrem(step: Step, words: Words) -> int:
    name, count = step.get(words[0], LIST), whole(words[1])
    return name.remove(words[2], abs(count) or MOST, down=count < 0)


def ltrim(step: Step, words: Words) -> StatusReply:
    step.get(words[0], LIST).trim(whole(words[1]), whole(words[2]))
    return OK


# -- sorted sets


def zadd(step: Step, words: Words) -> int:
    """ZADD name [XX | NX] [CH] score member ..."""
    name, *rest = words
    only_old, only_new = (rest[0].upper() == word for word in (b"XX", b"NX"))
    rest = rest[1:] if only_old or only_new else rest
    changed = rest[0].upper() == b"CH"
    found = step.get(name, ZSET) if only_old else step.change(name, ZSET)
    count, all_ = found.rescore(pairs(rest[1:] if changed else rest), only_old=only_old, only_new=only_new)
    return all_ if changed else count


def zscore(step: Step, words: Words) -> bytes | None:
    found = step.get(words[0], ZSET).some(words[1:2])
    return score_text(found[words[1]].score) if found else None


def zrank(step: Step, words: Words) -> int | None:
    name = step.get(words[0], ZSET)
    found = name.some(words[1:2])
    return name.rank_of(found[words[1]]) if found else None


def zrange(step: Step, words: Words) -> list[bytes]:
    """ZRANGE name first last [WITHSCORES]"""
    rest = [each.upper() for each in words[3:]]
    if rest not in ([], [b"WITHSCORES"]):
        raise ServerRefused(SYNTAX)
    found = step.get(words[0], ZSET).by_rank(whole(words[1]), whole(words[2]))
    return with_scores(found) if rest else [each.item for each in found]


def by_score(*, down: bool) -> Run:
    """ZRANGEBYSCORE name low high [WITHSCORES] [LIMIT first most]; ZREVRANGEBYSCORE has high before low."""

    def run(step: Step, words: Words) -> list[bytes]:
        name, *bounds = words[:3]
        low, high = map(bound, reversed(bounds) if down else bounds)
        rest, (first, most) = [each.upper() for each in words[3:]], (0, -1)
        if rest[-3:-2] == [b"LIMIT"]:
            first, most = whole(rest[-2]), whole(rest[-1])
            del rest[-3:]
        if rest not in ([], [b"WITHSCORES"]):
            raise ServerRefused(SYNTAX)
        found = step.get(name, ZSET).by_score(low, high, first, MOST if most < 0 else most, down=down)
        return with_scores(found) if rest else [each.item for each in found]

    return run


def zremrangebyrank(step: Step, words: Words) -> int:
    return step.get(words[0], ZSET).cut(whole(words[1]), whole(words[2]))


COMMANDS: Mapping[str, RedisCommand] = {
    "GET": RedisCommand(lambda step, words: step.get(words[0], "string").value, False),
    "MGET": RedisCommand(mget, False, -1),
    "SET": RedisCommand(set_, True, 1, 2),
    "EXISTS": RedisCommand(exists, False, -1),
    "DEL": RedisCommand(delete, True, -1),
    "UNLINK": RedisCommand(delete, True, -1),
    "TYPE": RedisCommand(type_, False),
    "EXPIRE": RedisCommand(lambda step, words: pexpire(step, [words[0], b"%d" % (1000 * whole(words[1]))]), True, 1, 2),
    "PEXPIRE": RedisCommand(pexpire, True, 1, 2),
    "PTTL": RedisCommand(pttl, False),
    "TIME": RedisCommand(time, False, 0, 0),
    "PING": RedisCommand(lambda *_: StatusReply(b"PONG"), False, 0, 0),
    "SCAN": RedisCommand(scan, False, 0, 1),
    "HSET": RedisCommand(hset, True, 1, 3),
    "HGET": RedisCommand(lambda step, words: hmget(step, words[:2])[0], False, 1, 2),
    "HMGET": RedisCommand(hmget, False, 1, 2),
    "HEXISTS": RedisCommand(lambda step, words: len(step.get(words[0], HASH).some(words[1:2])), False, 1, 2),
    "HSTRLEN": RedisCommand(lambda step, words: step.get(words[0], HASH).length(words[1]), False, 1, 2),
    "HDEL": RedisCommand(removal(HASH), True, 1, 2),
    "HGETALL": RedisCommand(lambda step, words: flat(step.get(words[0], HASH).every()), False),
    "HKEYS": RedisCommand(members(HASH), False),
    "HLEN": RedisCommand(size_of(HASH), False),
    "HINCRBY": RedisCommand(hincrby, True, 1, 3),
    "HSCAN": RedisCommand(scan_items(HASH), False, 1, 2),
    "SADD": RedisCommand(sadd, True, 1, 2),
    "SREM": RedisCommand(removal(SET), True, 1, 2),
    "SMEMBERS": RedisCommand(members(SET), False),
    "SCARD": RedisCommand(size_of(SET), False),
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
    "ZREMRANGEBYSCORE": RedisCommand(
        lambda step, words: step.get(words[0], ZSET).take_by_score(bound(words[1]), bound(words[2])), True, 1, 3
    ),
    "ZREMRANGEBYRANK": RedisCommand(zremrangebyrank, True, 1, 3),
    "ZSCAN": RedisCommand(scan_items(ZSET), False, 1, 2),
}


def command_of(words: Words) -> RedisCommand:
    """A command that qd does not use, or that has too few words, is refused when it runs."""
    name = words[0].decode("ascii", "replace").upper()
    found = COMMANDS.get(name)
    if found is None:
        return refusal(f"ERR unknown command '{name}' (known in a database: {', '.join(COMMANDS)})")
    if len(words) - 1 < found.least:
        return refusal(f"ERR wrong number of arguments for '{name.lower()}' command")
    return found


def refusal(text: str) -> RedisCommand:
    def run(_step: Step, _words: Words) -> None:
        raise ServerRefused(text)

    return RedisCommand(run, False, 0, 0)


def run(step: Step, words: Words) -> Any:
    """Run one command in this step. Raises ServerRefused, and ConnectionLost as the step's calls do."""
    return command_of(words).run(step, words[1:])


def run_many(step: Step, lines: Sequence[Words]) -> list[Any]:
    """One reply per line. A refused command has its error as reply, and nothing of it was done."""
    replies = list[Any]()
    for words in lines:
        try:
            replies.append(run(step, words))
        except ServerRefused as error:
            if step.broken:
                raise
            replies.append(error)
    return replies
