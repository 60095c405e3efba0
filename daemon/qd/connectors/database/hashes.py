"""Commands on hashes and sets."""

from __future__ import annotations

from typing import Any

from qd.connectors.database import items
from qd.connectors.database.step import Step
from qd.connectors.database.words import Command, Commands, Words, cursor_of, cursor_text, options, pairs, whole
from qd.errors import ServerRefused

HASH, SET = "hash", "set"


def hset(step: Step, words: Words) -> int:
    fields = dict(pairs(words[1:]))
    return items.put(step, step.change(words[0], HASH), {field: (0.0, value) for field, value in fields.items()})


def hget(step: Step, words: Words) -> bytes | None:
    return hmget(step, words[:2])[0]


def hmget(step: Step, words: Words) -> list[bytes | None]:
    found = items.some(step, step.look(words[0], HASH), words[1:])
    return [found[field].value if field in found else None for field in words[1:]]


def hexists(step: Step, words: Words) -> int:
    return int(bool(items.some(step, step.look(words[0], HASH), words[1:2])))


def hstrlen(step: Step, words: Words) -> int:
    name = step.look(words[0], HASH)
    return items.length(step, name, words[1]) if name.size else 0


def hdel(step: Step, words: Words) -> int:
    return items.take(step, step.look(words[0], HASH), words[1:])


def hgetall(step: Step, words: Words) -> list[bytes | None]:
    return [part for each in items.every(step, step.look(words[0], HASH)) for part in (each.item, each.value)]


def hkeys(step: Step, words: Words) -> list[bytes]:
    return [each.item for each in items.every(step, step.look(words[0], HASH))]


def hlen(step: Step, words: Words) -> int:
    return step.look(words[0], HASH).size


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
    name, most = step.look(words[0], HASH), whole(options(words[2:]).get(b"COUNT", b"10"))
    found = items.after(step, name, cursor_of(words[1]), most) if name.size else []
    following = cursor_text(found[-1][0]) if len(found) == most else b"0"
    return [following, [part for _, each in found for part in (each.item, each.value)]]


def sadd(step: Step, words: Words) -> int:
    name = step.change(words[0], SET)
    new = [member for member in dict.fromkeys(words[1:]) if member not in items.some(step, name, words[1:])]
    return items.put(step, name, dict.fromkeys(new, (0.0, None)))


def srem(step: Step, words: Words) -> int:
    return items.take(step, step.look(words[0], SET), words[1:])


def scard(step: Step, words: Words) -> int:
    return step.look(words[0], SET).size


def smembers(step: Step, words: Words) -> list[bytes]:
    return [each.item for each in items.every(step, step.look(words[0], SET))]


COMMANDS: Commands = {
    "HSET": Command(hset, True, 1, 3),
    "HGET": Command(hget, False, 1, 2),
    "HMGET": Command(hmget, False, 1, 2),
    "HEXISTS": Command(hexists, False, 1, 2),
    "HSTRLEN": Command(hstrlen, False, 1, 2),
    "HDEL": Command(hdel, True, 1, 2),
    "HGETALL": Command(hgetall, False),
    "HKEYS": Command(hkeys, False),
    "HLEN": Command(hlen, False),
    "HINCRBY": Command(hincrby, True, 1, 3),
    "HSCAN": Command(hscan, False, 1, 2),
    "SADD": Command(sadd, True, 1, 2),
    "SREM": Command(srem, True, 1, 2),
    "SCARD": Command(scard, False),
    "SMEMBERS": Command(smembers, False),
}
