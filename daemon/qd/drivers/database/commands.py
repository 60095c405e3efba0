"""The Redis commands of the keyspace on tables, by name: those on strings and on names of any kind, and all others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sql

from qd.drivers.database import collections, queue_keys, schema
from qd.drivers.database.items import (
    OK,
    SYNTAX,
    Commands,
    RedisCommand,
    StatusReply,
    Words,
    cursor_of,
    cursor_text,
    options,
    whole,
)
from qd.drivers.database.transaction import Step
from qd.errors import ServerRefused


def get(step: Step, words: Words) -> bytes | None:
    return step.get(words[0], "string").value


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
    if only_new and step.get(name).kind:
        return None
    if step.get(name).kind != "string":
        step.remove(name)
    found = step.change(name, "string")
    found.value, found.size, found.expires_at = value, 1, expires_at
    return OK


def exists(step: Step, words: Words) -> int:
    step.open(words)
    return sum(bool(step.get(name).kind) for name in words)


def delete(step: Step, words: Words) -> int:
    step.open(words)
    return sum([step.remove(name) for name in words])


def expire(step: Step, words: Words) -> int:
    return pexpire(step, [words[0], b"%d" % (1000 * whole(words[1]))])


def pexpire(step: Step, words: Words) -> int:
    found, span = step.get(words[0]), whole(words[1])
    if not found.kind:
        return 0
    if span <= 0:
        step.remove(words[0])
    else:
        found.expires_at = step.now_us + 1000 * span
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
    """SCAN cursor [MATCH pattern] [COUNT n]; names of queues with rows come with the first piece."""
    given = options(words[1:])
    pattern, most, after = given.get(b"MATCH", b"*"), whole(given.get(b"COUNT", b"10")), cursor_of(words[0])
    step.open(())
    start, columns = literal(pattern), schema.names.c
    query = sql.select(columns.name, columns.whole, columns.expires_at).order_by(columns.name).limit(most)
    query = query.where(columns.name >= start if after is None else columns.name > after)
    if above := beyond(start):
        query = query.where(columns.name < above)
    rows = list(step.execute(query))
    names = [bytes(row.whole or row.name) for row in rows if row.expires_at is None or row.expires_at > step.now_us]
    names += queue_keys.names(step) if after is None else []
    following, matches = cursor_text(bytes(rows[-1].name)) if len(rows) == most else b"0", glob(pattern)
    return [following, [name for name in names if matches.fullmatch(name)]]


def literal(pattern: bytes) -> bytes:
    """The literal start of a pattern, as far as it fits into a key."""
    found = re.match(rb"(?:[^*?\[\]\\^]|\\.)*", pattern, re.DOTALL)
    return re.sub(rb"\\(.)", rb"\1", found[0] if found else b"", flags=re.DOTALL)[: schema.LONGEST]


def beyond(start: bytes) -> bytes:
    """The first name after all that start like this; b"" if there is none."""
    kept = start.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def glob(pattern: bytes) -> re.Pattern[bytes]:
    """Supports *, ? and the backslash; sets of letters are not supported."""
    parts = re.findall(rb"\\.|.", pattern, re.DOTALL)
    wild = {b"*": b".*", b"?": b"."}
    return re.compile(b"".join(wild.get(part) or re.escape(part[-1:]) for part in parts), re.DOTALL)


COMMANDS: Commands = {
    "GET": RedisCommand(get, False),
    "MGET": RedisCommand(mget, False, -1),
    "SET": RedisCommand(set_, True, 1, 2),
    "EXISTS": RedisCommand(exists, False, -1),
    "DEL": RedisCommand(delete, True, -1),
    "UNLINK": RedisCommand(delete, True, -1),
    "TYPE": RedisCommand(lambda step, words: StatusReply(step.get(words[0]).kind.encode() or b"none"), False),
    "EXPIRE": RedisCommand(expire, True, 1, 2),
    "PEXPIRE": RedisCommand(pexpire, True, 1, 2),
    "PTTL": RedisCommand(pttl, False),
    "TIME": RedisCommand(time, False, 0, 0),
    "PING": RedisCommand(lambda *_: StatusReply(b"PONG"), False, 0, 0),
    "SCAN": RedisCommand(scan, False, 0, 1),
    **collections.COMMANDS,
}


def command_of(words: Words) -> RedisCommand:
    """Raises ServerRefused for a command that qd does not use, or with too few words."""
    name = words[0].decode("ascii", "replace").upper()
    found = COMMANDS.get(name)
    if found is None:
        raise ServerRefused(f"ERR unknown command '{name}' (known in a database: {', '.join(COMMANDS)})")
    if len(words) - 1 < found.least:
        raise ServerRefused(f"ERR wrong number of arguments for '{name.lower()}' command")
    return found


def names_of(command: RedisCommand, words: Words) -> Words:
    """The names among its words, which start with the command."""
    return words[1:] if command.names < 0 else words[1 : 1 + command.names]


def run(step: Step, words: Words) -> Any:
    """Run one command in this step. Raises ServerRefused, and ConnectionLost as the step's calls do."""
    command, name = command_of(words), words[0].decode().upper()
    if command.names and (place := queue_keys.place_of(step, words[1])) is not None:
        if command.names < 0:
            return sum(queue_keys.run(queue_keys.place_of(step, each) or place, name, ()) for each in words[1:])
        return queue_keys.run(place, name, words[2:])
    return command.run(step, words[1:])


def known(words: Words) -> RedisCommand | None:
    """None if it will be refused, or is MULTI or EXEC."""
    try:
        return command_of(words)
    except ServerRefused:
        return None


def run_many(step: Step, lines: Sequence[Words]) -> list[Any]:
    """One reply per line. A refused command has its error as reply, and nothing of it was done."""
    replies, queued = list[Any](), None
    for words in lines:
        word = words[0].upper()
        if word == b"MULTI":
            queued = list[Any]()
            replies.append(OK)
        elif word == b"EXEC":
            replies.append(queued or [])
            queued = None
        elif queued is not None:
            queued.append(reply_of(step, words))
            replies.append(StatusReply(b"QUEUED"))
        else:
            replies.append(reply_of(step, words))
    return replies


def reply_of(step: Step, words: Words) -> Any:
    """As `run`, but a refusal is the reply."""
    try:
        return run(step, words)
    except ServerRefused as error:
        if step.broken:
            raise
        return error
