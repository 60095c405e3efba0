"""Encoding of commands, the errors that replies mean, and the greeting of a new connection."""

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
# To a long command before AUTH, a server replies with a protocol error instead of NOAUTH.
PASSWORD = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR Client sent AUTH", "ERR Protocol error: unauthenticated")
# Servers before 7 put the word inside a script's own error; a server at its maximum of clients sends no word.
HIDDEN = ("-OOM ", "-READONLY ", "-MISCONF ", "-NOREPLICAS ", "max number of clients reached")
# After these the connection is closed: another server is the primary now, or this one hangs up.
LAST = ("READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED", "Protocol error", "max number of clients reached")

ITEM = b"$%d\r\n%b\r\n"


def packed_items(args: Sequence[Arg], before: bytes = b"") -> bytes:
    """Arguments as bulk strings, after the bytes `before`."""
    words: list[int | bytes] = [before]
    for arg in args:
        part = arg if isinstance(arg, bytes) else str(arg).encode()
        words += (len(part), part)
    return (b"%b" + ITEM * len(args)) % tuple(words)  # one step, because a call of the schedule has thousands


def packed(args: Sequence[Arg]) -> bytes:
    """A whole command: an array of bulk strings."""
    return packed_items(args, b"*%d\r\n" % len(args))


def evalsha(script: Script, names: Sequence[str], args: Sequence[Arg]) -> bytes:
    """names: a tuple is packed once and cached; use it for names that repeat."""
    head = _headed(script.sha, names) if isinstance(names, tuple) else _head(script.sha, names)
    return packed_items(args, b"*%d\r\n%b" % (3 + len(names) + len(args), head))


def _head(sha: str, names: Sequence[str]) -> bytes:
    return packed_items(("EVALSHA", sha, len(names), *names))


_headed = lru_cache(64)(_head)


def with_text(script: Script, command: bytes) -> bytes:
    """The EVALSHA as EVAL, for a server that does not know the script. It stores the script."""
    by_hash = packed_items(("EVALSHA", script.sha))
    return command.replace(by_hash, packed_items(("EVAL", script.text)), 1)


def is_unknown(reply: object) -> bool:
    return isinstance(reply, ServerRefused) and str(reply).startswith("NOSCRIPT")


def with_refusals(reply: Any) -> Any:
    """Convert the errors inside a script's reply to qd's exceptions."""
    if not isinstance(reply, list):
        return reply
    return [classified(str(each)) if isinstance(each, hiredis.ReplyError) else each for each in reply]


def is_last(reply: object) -> bool:
    """Whether the connection must be closed after this reply, or after an error in it."""
    if isinstance(reply, list):
        return any(is_last(each) for each in reply if isinstance(each, Exception))
    return isinstance(reply, Exception) and any(word in str(reply) for word in LAST)


def classified(text: str) -> Exception:
    word = text.split(" ", 1)[0].rstrip(":")
    if text.startswith(PASSWORD):
        return WrongPassword(f"Redis refuses this user or password: {text}")
    if word in ("MOVED", "CROSSSLOT"):
        return OtherKind(f"{text} (this server is a node of a cluster: write redis+cluster:// in the url)")
    if word == "OOM" or "-OOM " in text:
        until = "until workers have made room or maxmemory is raised"
        return ServerBusy(f"Redis is full and takes no new jobs {until}: {text}")
    if word in BUSY or any(mark in text for mark in HIDDEN):
        return ServerBusy(f"Redis cannot serve now: {text}")
    return ServerRefused(text)


Commands = list[tuple[Arg, ...]]


def greeting(target: RedisUrl, name: str, user: str | None, password: str | None) -> Commands:
    """The commands of one round trip: log in, select the database, set the name, identify the server. name: shown in the
    server's client list, "" for none."""
    commands = Commands()
    if password is not None:
        commands.append(("AUTH", user, password) if user else ("AUTH", password))
    if target.db:
        commands.append(("SELECT", target.db))
    if name:
        commands.append(("CLIENT", "SETNAME", name))
    if target.must_be_primary:
        commands.append(("ROLE",))
    commands.append(("TIME",))  # a valid reply identifies a Redis server
    return commands


def check_welcome(target: RedisUrl, commands: Commands, replies: Sequence[Any]) -> None:
    """Raises the server's error; Unreachable if this is not Redis or not a primary; Unusable if the database is missing."""
    for command, reply in zip(commands, replies, strict=True):
        if command[0] == "SELECT" and isinstance(reply, ServerRefused):
            raise Unusable(f"Redis at {target.place} has no such database: {reply}")
        # An ACL may forbid SETNAME and ROLE. If it forbids TIME, the first call reports that.
        optional = command[0] in ("CLIENT", "ROLE") or (command[0] == "TIME" and not isinstance(reply, ServerBusy))
        if isinstance(reply, Exception) and not optional:
            raise reply
        if command[0] == "ROLE" and isinstance(reply, list) and reply[0] != b"master":
            raise Unreachable(f"Redis at {target.place} is a {reply[0].decode()}: no primary is there yet")
    if not isinstance(reply, Exception) and not (isinstance(reply, list) and len(reply) == 2):
        raise Unreachable(stranger(target))


def stranger(target: RedisUrl) -> str:
    return f"the server at {target.place} does not reply as Redis does: does the url name another program's port?"
