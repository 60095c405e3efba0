"""A keyspace: names of strings, hashes, lists, sets and sorted sets, each with an expiry, and the scripts that run on them.

    Keyspace   the contract. A Redis or Valkey server is a keyspace (redis/connection.py), and so are the tables of a
               database (database/keyspace.py). All of them take Redis commands and return Redis replies.
    Script     one atomic step on several names, from the .lua files in scripts/. A Redis server executes a script itself;
               for a database, qd executes it in this process.

A keyspace also stores everything besides the queues: failed jobs, locks, batches, control values, reports.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from qd.drivers.keyspace import keys
from qd.errors import QdError, ServerRefused
from qd.options.kinds import QUEUE_SUFFIXES

T = TypeVar("T")
Kind = TypeVar("Kind")
Arg = bytes | str | int | float
Replies = Callable[[], list[Any]]
FOLDER = Path(__file__).parent / "scripts"
EFFECTS = ("due.lua", "keep.lua", "batch.lua", "places.lua", "effects.lua")
RARELY = ("rarely.lua", "reservation.lua", "failed.lua", "tied.lua", "rarely_end.lua")
TAKE = ("fresh.lua", "pick.lua", *RARELY, "take.lua")
PARTS = {  # the files of a script, joined in this order; a script that is not listed is a single file
    "turn": ("exceptions.lua", "usual.lua", *TAKE, "turn.lua"),
    "lanes": ("exceptions.lua", *TAKE, "stopped.lua", "lanes.lua"),
    "settle_lanes": ("stopped.lua", "settle_lanes.lua"),
    "batch_add": ("due.lua", "batch.lua", "batch_add.lua"),
    **{f"keyed_{each}": ("due.lua", "keyed.lua", f"keyed_{each}.lua") for each in ("send", "cancel", "move", "due")},
    "unique": ("due.lua", "single.lua", "unique.lua"),
    "tick": ("due.lua", "keyed.lua", "single.lua", "tick.lua"),
    "once": ("due.lua", "keyed.lua", "batch.lua", "once.lua"),
    **{each: ("due.lua", f"{each}.lua") for each in ("later", "once_over", "ends_left", "report", "tick_apart")},
    **{each: ("due.lua", "batch.lua", f"{each}.lua") for each in ("counted", "batch_aside", "send_apart")},
    "retry_apart": ("due.lua", "failed.lua", "retry_apart.lua"),
    **{each: (*EFFECTS, f"{each}.lua") for each in ("apart", "ack", "release", "drop", "ended")},
    **{each: (*EFFECTS, "failed.lua", f"{each}.lua") for each in ("buried", "bury")},
    "taken": ("tied.lua", "taken.lua"),
    "retry": ("due.lua", "batch.lua", "failed.lua", "retry.lua"),
    **{each: ("failed.lua", f"{each}.lua") for each in ("aged", "forget", "adopt")},
    **{each: ("line.lua", f"{each}.lua") for each in ("lock_take", "lock_give")},
    # For brokers that keep nothing but jobs: the same answers, plus the state of the delivery at the broker.
    "delivery_turn": ("fresh.lua", "reservation.lua", "failed.lua", "tied.lua", "delivery.lua", "delivery_turn.lua"),
    "delivery_ack": ("delivery.lua", *EFFECTS, "delivery_open.lua", "ack.lua", "delivery_close.lua"),
    "delivery_release": ("delivery.lua", *EFFECTS, "delivery_open.lua", "release.lua", "delivery_close.lua"),
    "delivery_bury": ("delivery.lua", *EFFECTS, "failed.lua", "delivery_open.lua", "bury.lua", "delivery_close.lua"),
    "delivery_keep": (*EFFECTS, "delivery_keep.lua"),
    "delivery_reclaim": ("delivery.lua", "delivery_reclaim.lua"),
    "outbox": ("fresh.lua", "tied.lua", "came_through.lua", "outbox.lua"),
    "outbox_leave": ("came_through.lua", "outbox_leave.lua"),
    **{each: ("places.lua", f"{each}.lua") for each in ("hold", "hold_note", "unhold")},
    **{each: ("window.lua", f"{each}.lua") for each in ("admit", "admit_left")},
}


class ScriptCall(NamedTuple):
    """One step. places: the indexes of the caller's items in it; a valid reply has one answer for each, or their number."""

    script: Script
    names: Sequence[str]
    args: Sequence[Arg]
    places: Sequence[int] = ()


class Keyspace(Protocol):
    """Belongs to one thread of one process, and connects on first use.

    Every call may raise ConnectionLost (the server may have executed it), ServerBusy, WrongPassword or ServerRefused (the
    server has not executed it). Every wait is bounded.
    """

    @property
    def place(self) -> str:
        """The address for messages, without a password."""

    @property
    def stranger(self) -> str:
        """The error message if its replies are not those of a keyspace."""

    def call(self, *args: Arg) -> Any:
        """One command, one reply: bytes, int, None or a list of them."""

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Many commands in one round trip, not as one step. Errors are exceptions in the list."""

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        """One step on these names."""

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Many steps in one round trip, each atomic, not all together. Errors are exceptions in the list."""

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        """Start run_many(); call the result for the replies. A server that can work meanwhile does, and other calls may come
        in between."""

    def pop(self, name: str, seconds: float) -> bool:
        """Take the first item of the list `name`, waiting at most `seconds`. False: none came. An exception from a signal
        handler leaves the keyspace usable."""

    # See base.Patience for the next three.

    def patience(self, connect: float, answer: float) -> None: ...

    def on_progress(self, call: Callable[[float], None]) -> None: ...

    def within(self, seconds: float) -> AbstractContextManager[None]: ...

    def close(self) -> None:
        """The next call reconnects."""


class Unanswered(BaseException):
    """Raised by the keyspace of an event loop (redis/aio.py), which has no reply to this call yet. commands: of the
    call, packed. scripts: what their hashes mean."""

    def __init__(self, commands: Sequence[bytes], scripts: Sequence[Script | None]) -> None:
        self.commands, self.scripts = commands, scripts


class Script:
    """A Lua script and its hash on the server."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(self, space: Keyspace, keys: Sequence[str], *args: Arg) -> Any:
        try:
            return space.run(self, keys, args)
        except ServerRefused as error:
            raise named(error, space, keys) from None


MISTYPED = "WRONGTYPE"  # begins the error of a command whose key has another type, or is in that of a script


def strange(space: Keyspace, prefix: str, expected: Mapping[str, bytes]) -> str:
    """The keys that have another type than expected, and the fix; "" if there are none. Raises ConnectionLost."""
    found = space.call_many([("TYPE", prefix + key) for key in expected])
    wrong = [
        f"{prefix}{key} is a {kind.decode()} and not a {wanted.decode()}"
        for kind, (key, wanted) in zip(found, expected.items(), strict=True)
        if isinstance(kind, bytes) and kind not in (b"none", wanted)
    ]
    return f"{', '.join(wrong)}; delete or rename it, or change `prefix`" if wrong else ""


def strange_queue(space: Keyspace, prefix: str, queue: str) -> str:
    return strange(space, prefix, {key(queue): kind for key, kind in keys.TYPES.items()})


class Mistyped(ServerRefused):
    """A key has another type than expected; the message names it and the fix. The server changed nothing."""


def named(error: ServerRefused, space: Keyspace, names: Iterable[str]) -> ServerRefused:
    """Mistyped for the server's error that a key has another type, else `error`. names: the keys of the call, of which those
    of the first queue are checked."""
    if MISTYPED not in str(error) or isinstance(error, Mistyped):
        return error
    prefix, of_queue, queue = next((name for name in names if "queues:" in name), "").partition("queues:")
    suffix = next((each for each in QUEUE_SUFFIXES if queue.endswith(each)), "")
    try:
        return Mistyped((of_queue and strange_queue(space, prefix, queue.removesuffix(suffix))) or str(error))
    except QdError:
        return error


@contextmanager
def naming(space: Keyspace, *names: str) -> Iterator[None]:
    """Raises Mistyped for a key of another type. names: as in `named`."""
    try:
        yield
    except ServerRefused as error:
        raise named(error, space, names) from None


def checked(replies: list[Any]) -> list[Any]:
    """The replies of call_many or run_many. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def chunked(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def grouped(kinds: Iterable[Kind], most: int) -> list[tuple[Kind, Sequence[int]]]:
    """The indexes of equal items, at most `most` in each group."""
    groups: defaultdict[Kind, list[int]] = defaultdict(list)
    for place, kind in enumerate(kinds):
        groups[kind].append(place)
    return [(kind, some) for kind, places in groups.items() for some in chunked(places, most)]


def chunked_by_size(items: Sequence[T], size: Callable[[T], int], most: int, most_bytes: int) -> Iterator[list[T]]:
    """Parts of at most `most` items and `most_bytes` bytes; a single item may be larger."""
    some, total = list[T](), 0
    for item in items:
        if some and (len(some) == most or total + size(item) > most_bytes):
            yield some
            some, total = [], 0
        some.append(item)
        total += size(item)
    if some:
        yield some


@cache
def script(name: str) -> Script:
    """The script `name`, read and hashed once per process."""
    return Script(name, "\n".join([(FOLDER / part).read_text() for part in PARTS.get(name, (f"{name}.lua",))]))
