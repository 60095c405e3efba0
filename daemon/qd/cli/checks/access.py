"""May this user do what workers, keepers and commands do? Each command is tried on keys of qd's own making, or in a form
that changes nothing; an ACL refuses before it looks at the arguments."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.connectors.redis import keys
from qd.connectors.redis.wire import Arg, Wire

Tries = Sequence[tuple[Arg, ...]]
HINT = "SECURITY.md has the rights that each kind of process needs"


def check(wire: Wire, where: str, prefix: str, queues: Sequence[str]) -> Iterator[Finding]:
    """`queues`: those that are worked on. Nothing but a scratch list is written, and that is taken away again."""
    user = name_of(wire)
    what = f"{where}.rights"
    missing = sorted(refused(wire, work_tries(prefix, queues[0] if queues else "default")))
    closed = [name for name in key_names(prefix, queues) if of_key(wire.call_many([("EXISTS", name)])[0])]
    if closed:
        said = f"user {user} may not touch {', '.join(closed[:3])}"
        yield fail(what, said, f"ACL SETUSER {user} ~{prefix}queues:* ~{prefix}qd:*; {HINT}")
    elif missing:
        said = f"user {user} may not {', '.join(word.upper() for word in missing)}: workers cannot work"
        yield fail(what, said, f"ACL SETUSER {user} {' '.join('+' + word for word in missing)}; {HINT}")
    else:
        yield ok(what, f"user {user} may do all that workers do")
    lacks = sorted(refused(wire, steer_tries(prefix)) - set(missing))
    if lacks and not missing:
        said = f"user {user} may not {', '.join(word.upper() for word in lacks)}: `qd restart` and its sisters fail"
        yield warn(
            what, said, f"give commands another url, or ACL SETUSER {user} {' '.join('+' + word for word in lacks)}"
        )


def name_of(wire: Wire) -> str:
    (said,) = wire.call_many([("ACL", "WHOAMI")])
    return said.decode() if isinstance(said, bytes) else wire.target.user or "default"


def key_names(prefix: str, queues: Sequence[str]) -> list[str]:
    kinds = [keys.ready, keys.delayed, keys.reserved, keys.notify, keys.owners]
    kinds += [keys.paused, keys.failed, keys.failed_at, keys.deaths]
    names = [kind(queue) for queue in queues for kind in kinds] + [keys.MASTERS, keys.RESTART, keys.DOWN]
    return [prefix + name for name in names]


def refused(wire: Wire, tries: Tries) -> set[str]:
    """The commands that the user may not call, in small letters."""
    return {str(one[0]).lower() for one, reply in zip(tries, wire.call_many(tries), strict=True) if may_not(reply)}


def may_not(reply: Any) -> bool:
    """Whether the command itself is refused, whatever the key."""
    return isinstance(reply, Exception) and "NOPERM" in str(reply) and not of_key(reply)


def of_key(reply: Any) -> bool:
    """`NOPERM ... no permissions to access one of the keys` (6, 7.0), `... to access a key` (since 7.2)."""
    return isinstance(reply, Exception) and "NOPERM" in str(reply) and " to access " in str(reply)


def work_tries(prefix: str, queue: str) -> Tries:
    """What workers, keepers and producers call."""
    token = secrets.token_hex(4)
    scratch, none = f"{prefix}{keys.ready(queue)}:doctor-{token}", f"{prefix}{keys.reserved(queue)}:doctor-{token}"
    return [
        ("TIME",),
        ("EVALSHA", "0" * 40, 0),
        ("EVAL", "return 1", 0),
        ("RPUSH", scratch, "1"),
        ("LPUSH", scratch, "2"),
        ("EXPIRE", scratch, 5),  # should what takes it away be refused
        ("LINDEX", scratch, 0),
        ("LLEN", scratch),
        ("LTRIM", scratch, 0, -1),
        ("LREM", scratch, 1, "2"),
        ("BLPOP", scratch, 0.01),
        ("LPOP", scratch),
        ("ZADD", none, "XX", 1, "m"),
        *((name, none, "m") for name in ("ZREM", "ZSCORE", "ZRANK", "HGET", "HDEL", "HEXISTS", "HMGET", "HSTRLEN")),
        *((name, none) for name in ("ZCARD", "HLEN", "HKEYS", "HGETALL", "EXISTS", "GET", "SCARD", "PTTL")),
        ("ZRANGE", none, 0, 0),
        ("ZRANGEBYSCORE", none, 0, 1),
        ("ZREMRANGEBYSCORE", none, 0, 1),
        ("SADD", scratch, "m"),
        ("PEXPIRE", scratch, 5000),
        ("SREM", scratch, "m"),
        ("HINCRBY", none, "f", 0),
        ("ZREMRANGEBYRANK", none, 0, 0),
        ("HSET", none, "f", "1"),
        ("HDEL", none, "f"),
    ]


def steer_tries(prefix: str) -> Tries:
    """What the commands call beside that."""
    scratch = f"{prefix}{keys.MASTERS}:doctor-{secrets.token_hex(4)}"
    return [
        ("SET", scratch, "1", "PX", 1),
        ("DEL", scratch),
        ("UNLINK", scratch),
        ("MGET", scratch),
        ("SCAN", 0),
        ("MULTI",),
        ("EXEC",),
    ]
