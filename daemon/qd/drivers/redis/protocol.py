"""What is written to a Redis server, and what its replies mean. wire.py and the cluster's ask here.

The first words of a connection to a Redis, and whether the answers are those of the server that was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import hiredis

from qd.drivers.keyspace.base import Arg, Script
from qd.drivers.redis.url import RedisUrl
from qd.errors import OtherKind, ServerBusy, ServerRefused, Unreachable, Unusable, WrongPassword

BUSY = (
    "LOADING", "READONLY", "MASTERDOWN", "MISCONF", "BUSY", "OOM", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED",
)  # fmt: skip
# A command of many words to a server that wants a password is a protocol error to it, and not NOAUTH.
PASSWORD = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR Client sent AUTH", "ERR Protocol error: unauthenticated")
# Scripts of servers before 7 hide the word in their own error; a server that is full of clients has none.
HIDDEN = ("-OOM ", "-READONLY ", "-MISCONF ", "-NOREPLICAS ", "max number of clients reached")
# Not to be used again after these: another server serves now and is looked for anew, or this one hangs up.
LAST = ("READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED", "Protocol error", "max number of clients reached")

ITEM = b"$%d\r\n%b\r\n"


def packed_items(args: Sequence[Arg], before: bytes = b"") -> bytes:
    """Arguments as the protocol sends them, each a bulk string. before: what stands in front of them."""
    words: list[int | bytes] = [before]
    for arg in args:
        part = arg if isinstance(arg, bytes) else str(arg).encode()
        words += (len(part), part)
    return (b"%b" + ITEM * len(args)) % tuple(words)  # all at once: a call of the schedule has thousands


def packed(args: Sequence[Arg]) -> bytes:
    """A whole command: an array of bulk strings."""
    return packed_items(args, b"*%d\r\n" % len(args))


def evalsha(script: Script, names: Sequence[str], args: Sequence[Arg]) -> bytes:
    """names: a tuple that comes again and again is packed once."""
    head = _headed(script.sha, names) if isinstance(names, tuple) else _head(script.sha, names)
    return packed_items(args, b"*%d\r\n%b" % (3 + len(names) + len(args), head))


def _head(sha: str, names: Sequence[str]) -> bytes:
    return packed_items(("EVALSHA", sha, len(names), *names))


_headed = lru_cache(64)(_head)


def with_text(script: Script, command: bytes) -> bytes:
    """The same EVALSHA for a server that does not know the script: it keeps it then."""
    by_hash = packed_items(("EVALSHA", script.sha))
    return command.replace(by_hash, packed_items(("EVAL", script.text)), 1)


def is_unknown(reply: object) -> bool:
    return isinstance(reply, ServerRefused) and str(reply).startswith("NOSCRIPT")


def with_refusals(reply: Any) -> Any:
    """With the refusals inside of it, of a script that goes on after one, as exceptions of ours."""
    if not isinstance(reply, list):
        return reply
    return [classified(str(each)) if isinstance(each, hiredis.ReplyError) else each for each in reply]


def is_last(reply: object) -> bool:
    """Whether it, or a refusal in it, is the last that is heard of this connection."""
    if isinstance(reply, list):
        return any(is_last(each) for each in reply if isinstance(each, Exception))
    return isinstance(reply, Exception) and any(word in str(reply) for word in LAST)


def classified(text: str) -> Exception:
    word = text.split(" ", 1)[0].rstrip(":")
    if text.startswith(PASSWORD):
        return WrongPassword(f"Redis refuses this user or password: {text}")
    if word in ("MOVED", "CROSSSLOT"):
        return OtherKind(
            f"{text} (a node of a cluster says so to one that takes it for a single server: write redis+cluster://)"
        )
    if word == "OOM" or "-OOM " in text:
        return ServerBusy(
            f"Redis is full and takes no new jobs until workers have made room or maxmemory is raised: {text}"
        )
    if word in BUSY or any(mark in text for mark in HIDDEN):
        return ServerBusy(f"Redis cannot serve now: {text}")
    return ServerRefused(text)


Commands = list[tuple[Arg, ...]]


def greeting(target: RedisUrl, name: str, user: str | None, password: str | None) -> Commands:
    """Who we are, which database, and who is there. name: what its list of clients shows, "" for none."""
    commands = Commands()
    if password is not None:
        commands.append(("AUTH", user, password) if user else ("AUTH", password))
    if target.db:
        commands.append(("SELECT", target.db))
    if name:
        commands.append(("CLIENT", "SETNAME", name))
    if target.must_be_primary:
        commands.append(("ROLE",))
    commands.append(("TIME",))  # who answers this well is a Redis
    return commands


def check_welcome(target: RedisUrl, commands: Commands, replies: Sequence[Any]) -> None:
    """Raises what it was refused with, and Unreachable: another program, or no primary yet; Unusable: not this database."""
    for command, reply in zip(commands, replies, strict=True):
        if command[0] == "SELECT" and isinstance(reply, ServerRefused):
            raise Unusable(f"Redis at {target.place} has no such database: {reply}")
        if isinstance(reply, Exception) and not may_be_refused(command[0], reply):
            raise reply
        if command[0] == "ROLE" and isinstance(reply, list) and reply[0] != b"master":
            raise Unreachable(f"Redis at {target.place} is a {reply[0].decode()}: no primary is there yet")
    if not isinstance(reply, Exception) and not (isinstance(reply, list) and len(reply) == 2):
        raise Unreachable(stranger(target))


def may_be_refused(command: Arg, error: Exception) -> bool:
    """A name is a comfort, an ACL may refuse it, and ROLE too; and what TIME is refused for, the first call is told."""
    return command in ("CLIENT", "ROLE") or (command == "TIME" and not isinstance(error, ServerBusy))


def stranger(target: RedisUrl) -> str:
    return f"the server at {target.place} answers what no Redis answers: does the url name another program's port?"
