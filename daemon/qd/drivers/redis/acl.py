"""Which commands of workers and keepers an ACL forbids this user. Each command is tried on keys that only qd uses, or in a
form that changes nothing: an ACL refuses before the server checks the arguments. Servers before 6 have no ACL.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg
from qd.drivers.redis.connection import RedisConnection

Tries = Sequence[tuple[Arg, ...]]
OF_A_MEMBER = ("ZREM", "ZSCORE", "ZMSCORE", "ZRANK", "HGET", "HDEL", "HEXISTS", "HMGET", "HSTRLEN", "SREM")
OF_A_KEY = ("ZCARD", "HLEN", "HKEYS", "HGETALL", "EXISTS", "GET", "SCARD", "PTTL", "LLEN", "LPOP")


def name_of(connection: RedisConnection) -> str:
    (reply,) = connection.call_many([("ACL", "WHOAMI")])
    return reply.decode() if isinstance(reply, bytes) else connection.target.login.user or "default"


def missing(connection: RedisConnection, prefix: str, queue: str) -> set[str]:
    """The commands that workers and keepers need and the user may not call, in lower case. No key remains: writing commands
    are tried only if the user may call EXPIRE. Raises ConnectionLost."""
    lacks = refused(connection, quiet_tries(prefix, queue))
    return lacks if "expire" in lacks else lacks | refused(connection, writing_tries(prefix, queue))


def refused(connection: RedisConnection, tries: Tries) -> set[str]:
    """The commands of `tries` that the user may not call on any key, in lower case."""
    replies = zip(tries, connection.call_many(tries), strict=True)
    return {
        str(command[0]).lower()
        for command, reply in replies
        if isinstance(reply, Exception) and "NOPERM" in str(reply) and not of_key(reply)
    }


def of_key(reply: Any) -> bool:
    """Whether only the key is refused: `NOPERM ... no permissions to access one of the keys` (6, 7.0), `... to access a key`
    (since 7.2)."""
    return isinstance(reply, Exception) and "NOPERM" in str(reply) and " to access " in str(reply)


def scratch_key(prefix: str, queue: str) -> str:
    return f"{prefix}{keys.ready(queue)}:rights-{secrets.token_hex(4)}"


def quiet_tries(prefix: str, queue: str) -> Tries:
    """Commands that write nothing: on a key that does not exist, or with an invalid argument."""
    none = scratch_key(prefix, queue)
    return [
        ("TIME",), ("EVALSHA", "0" * 40, 0), ("EVAL", "return 1", 0), ("EXPIRE", none, 5), ("PEXPIRE", none, 5000),
        ("LINDEX", none, 0), ("LRANGE", none, 0, 0), ("LTRIM", none, 0, -1), ("LREM", none, 0, "m"), ("BLPOP", none, "soon"),
        ("ZADD", none, "XX", 1, "m"), ("ZRANGE", none, 0, 0), ("ZRANGEBYSCORE", none, 0, 1),
        ("ZREMRANGEBYSCORE", none, 0, 1), ("ZREMRANGEBYRANK", none, 0, 0),
        ("HINCRBY", none, "f", "one"), ("HSET", none, "f", "1", "g"),
        *((name, none, "m") for name in OF_A_MEMBER), *((name, none) for name in OF_A_KEY),
    ]  # fmt: skip


def writing_tries(prefix: str, queue: str) -> Tries:
    """Commands that create a list or set and delete it. If the deletion is refused, the key expires after five seconds."""
    tries: list[tuple[Arg, ...]] = []
    for add, delete, *member in (("RPUSH", "LPOP"), ("LPUSH", "LPOP"), ("SADD", "SREM", "m")):
        name = scratch_key(prefix, queue)
        tries += [(add, name, "m"), ("EXPIRE", name, 5), (delete, name, *member)]
    return tries
