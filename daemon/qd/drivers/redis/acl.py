"""May this user do what workers and keepers do? Each command is tried on keys of qd's own making, or in a form that changes
nothing; an ACL refuses before it looks at the arguments. Servers before 6 have no ACL and refuse nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg
from qd.drivers.redis.connection import RedisConnection

Tries = Sequence[tuple[Arg, ...]]
OF_A_MEMBER = ("ZREM", "ZSCORE", "ZRANK", "HGET", "HDEL", "HEXISTS", "HMGET", "HSTRLEN", "SREM")
OF_A_KEY = ("ZCARD", "HLEN", "HKEYS", "HGETALL", "EXISTS", "GET", "SCARD", "PTTL", "LLEN", "LPOP")


def name_of(wire: RedisConnection) -> str:
    (said,) = wire.call_many([("ACL", "WHOAMI")])
    return said.decode() if isinstance(said, bytes) else wire.target.login.user or "default"


def missing(wire: RedisConnection, prefix: str, queue: str) -> set[str]:
    """The commands that workers and keepers need and that the user may not call, in small letters. Nothing stays: what
    writes is tried only where it can be given a time to live. Raises ConnectionLost."""
    lacks = refused(wire, quiet_tries(prefix, queue))
    return lacks if "expire" in lacks else lacks | refused(wire, writing_tries(prefix, queue))


def refused(wire: RedisConnection, tries: Tries) -> set[str]:
    """The commands that the user may not call, in small letters."""
    return {str(one[0]).lower() for one, reply in zip(tries, wire.call_many(tries), strict=True) if may_not(reply)}


def may_not(reply: Any) -> bool:
    """Whether the command itself is refused, whatever the key."""
    return isinstance(reply, Exception) and "NOPERM" in str(reply) and not of_key(reply)


def of_key(reply: Any) -> bool:
    """`NOPERM ... no permissions to access one of the keys` (6, 7.0), `... to access a key` (since 7.2)."""
    return isinstance(reply, Exception) and "NOPERM" in str(reply) and " to access " in str(reply)


def scratch_key(prefix: str, queue: str) -> str:
    return f"{prefix}{keys.ready(queue)}:rights-{secrets.token_hex(4)}"


def quiet_tries(prefix: str, queue: str) -> Tries:
    """On a key that is not there, or with an argument that is refused: nothing is written."""
    none = scratch_key(prefix, queue)
    return [
        ("TIME",),
        ("EVALSHA", "0" * 40, 0),
        ("EVAL", "return 1", 0),
        ("EXPIRE", none, 5),
        ("PEXPIRE", none, 5000),
        ("LINDEX", none, 0),
        ("LTRIM", none, 0, -1),
        ("LREM", none, 0, "m"),
        ("BLPOP", none, "soon"),
        ("ZADD", none, "XX", 1, "m"),
        ("ZRANGE", none, 0, 0),
        ("ZRANGEBYSCORE", none, 0, 1),
        ("ZREMRANGEBYSCORE", none, 0, 1),
        ("ZREMRANGEBYRANK", none, 0, 0),
        ("HINCRBY", none, "f", "one"),
        ("HSET", none, "f", "1", "g"),
        *((name, none, "m") for name in OF_A_MEMBER),
        *((name, none) for name in OF_A_KEY),
    ]


def writing_tries(prefix: str, queue: str) -> Tries:
    """Lists and a set for a moment: should what takes them away be refused, they have five seconds."""
    names = {command: scratch_key(prefix, queue) for command in ("RPUSH", "LPUSH", "SADD")}
    takes = {"RPUSH": ("LPOP",), "LPUSH": ("LPOP",), "SADD": ("SREM", "m")}
    tries: list[tuple[Arg, ...]] = []
    for command, name in names.items():
        end, *member = takes[command]
        tries += [(command, name, "m"), ("EXPIRE", name, 5), (end, name, *member)]
    return tries
