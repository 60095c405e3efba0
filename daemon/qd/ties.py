"""What a job is tied to: the key "qd" of its payload, which bus/ writes and the worker reads when the job ends.

    {"unique": "shop.charge:order:42", "chain": [["mail", 0, "{...}"]], "batch": "6f1c..."}

Nothing of it is needed to run the job. Links are whole payloads as text, made (and signed) when the job was sent: a string
is the one JSON value that every program between here and there leaves as it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

LONGEST_TIME = 100 * 365 * 86400.0  # seconds: what is longer overflows on the server
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_TIME)]


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that is sent later, on the connection of the one it is tied to. delay: seconds from then."""

    queue: str
    delay: Seconds
    payload: str


class Ties(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The names in it are of plain_name: they stand in the payload as in the keys, whoever writes its JSON again."""

    chain: tuple[Link, ...] = ()  # what follows when it has succeeded, the next first
    catch: tuple[Link, ...] = ()  # what is sent when it, or what follows, has failed for good
    batch: str | None = None  # the batch that counts it
    after: str | None = None  # the batch that it is a callback of
    result: Seconds | None = None  # seconds for which its result is kept
    until: Literal["start", "done"] = "done"  # when the lock below is freed
    hold: Seconds | None = None  # seconds for which it is held at most, from when the job is due; None: HOLD
    unique: str | None = None  # the name of the lock that keeps others of its kind away; its owner is the job's uuid
    key: str | None = None  # "ISSUE NAME", under which it can be moved and cancelled while it waits (keyspace/keyed.py)


HOLD = 86400.0
LONGEST = 200  # characters of a name
_ODD = re.compile(rb"[^A-Za-z0-9_.:@-]")


def plain_name(text: str) -> str:
    """`text` in letters that need no escape in JSON nor in a key: others as %2F. A long one ends in its hash instead."""
    name = _ODD.sub(lambda odd: b"%%%02X" % odd[0][0], text.encode("utf-8", "surrogatepass")).decode()
    if len(name) <= LONGEST:
        return name
    from hashlib import sha256  # seldom needed

    return f"{name[:130]}:{sha256(name.encode()).hexdigest()}"


def key_of(id: str, name: str) -> str:
    """What a job says of the name it waits under, of its first issue."""
    return f"00000.{id[:16]} {name}"


def written(ties: Ties) -> bytes:
    """As it stands in a payload, with the comma before it; nothing at all for a job that is tied to nothing."""
    text = msgspec.json.encode(ties)
    return b"" if text == b"{}" else b',"qd":' + text
