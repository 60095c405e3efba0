"""What is written to a Redis server, and what its replies mean. wire.py and the cluster's ask here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import hiredis

from qd.connectors.keyspace.base import Arg, Script
from qd.errors import OtherKind, ServerBusy, ServerRefused, WrongPassword

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
