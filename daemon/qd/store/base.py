"""The Store contract, on which the other files of this folder are built, and its implementation on a keyspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from qd.drivers.base import Connector
from qd.drivers.keyspace.base import MISTYPED, Arg, Keyspace, strange
from qd.drivers.keyspace.base import script as text_of
from qd.errors import ServerRefused

T = TypeVar("T")


class Store(Protocol):
    """Names to bytes, and names to hashes of bytes. Every method may raise ConnectionLost or ServerRefused."""

    def now(self) -> float:
        """Unix seconds by the store's clock, the only one that all hosts share."""

    def get(self, *names: str) -> list[bytes | None]:
        """Their values in this order. None: does not exist."""

    def put(self, name: str, value: bytes, seconds: float | None = None) -> None:
        """Set a value, which expires after `seconds` (None: never)."""

    def take(self, name: str) -> bytes | None:
        """Delete a value. Returns what it was."""

    def fields(self, name: str) -> Mapping[str, bytes]:
        """Every field of the hash `name`; {} if it does not exist."""

    def token(self, name: str) -> None:
        """Append a token to the list `name`, to wake a client that waits on it."""

    def pop(self, name: str, seconds: float) -> bool:
        """Wait at most `seconds` for a token in the list `name` and take it. False: none came. The connection stays usable
        if an exception interrupts the wait."""

    def left(self, name: str) -> float:
        """Seconds until it expires; 0: it does not exist, or never expires."""

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        """Run a script (a .lua file of the keyspace) on these names, atomically."""

    def names(self, start: str, most: int) -> list[str]:
        """Names that begin with `start`, among about `most` names that the server scans."""


STEP = 1000  # names the server scans in one call


class KeyspaceStore:
    """Belongs to the thread and process of its keyspace."""

    def __init__(self, space: Keyspace, prefix: str = "") -> None:
        self.space = space
        self.prefix = prefix

    def now(self) -> float:
        seconds, micros = self.space.call("TIME")
        return int(seconds) + int(micros) / 1_000_000

    def get(self, *names: str) -> list[bytes | None]:
        return self.space.call("MGET", *[self.prefix + name for name in names]) if names else []

    def put(self, name: str, value: bytes, seconds: float | None = None) -> None:
        expiry: tuple[Arg, ...] = () if seconds is None else ("PX", max(1, round(seconds * 1000)))
        self.space.call("SET", self.prefix + name, value, *expiry)

    def take(self, name: str) -> bytes | None:
        return self.step("take_value", [name])  # type: ignore[no-any-return]

    def fields(self, name: str) -> Mapping[str, bytes]:
        try:
            return fields_of(self.space.call("HGETALL", self.prefix + name))
        except ServerRefused as error:
            if MISTYPED in str(error) and (why := strange(self.space, self.prefix, {name: b"hash"})):
                raise ServerRefused(why) from None
            raise

    def token(self, name: str) -> None:
        self.space.call("RPUSH", self.prefix + name, "1")

    def pop(self, name: str, seconds: float) -> bool:
        return self.space.pop(self.prefix + name, seconds)

    def left(self, name: str) -> float:
        return max(0, int(self.space.call("PTTL", self.prefix + name))) / 1000

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        return text_of(script).call(self.space, [self.prefix + name for name in names], *words)

    def names(self, start: str, most: int) -> list[str]:
        return self.scan(start, most)[0]

    def scan(self, start: str, most: int) -> tuple[list[str], bool]:
        """As names(), and whether the server has names that it did not look at."""
        found: set[str] = set()
        pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in self.prefix + start) + "*"
        cursor = b"0"
        for _ in range(0, most, STEP):
            cursor, names = self.space.call("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
            found.update(name.decode("utf-8", "replace").removeprefix(self.prefix) for name in names)
            if cursor == b"0":
                break
        return sorted(found), cursor != b"0"


def decoded(decoder: msgspec.json.Decoder[T], raw: bytes) -> T | None:
    """None if the bytes are unreadable: another program, or an incompatible version of qd, may have written them."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def fields_of(flat: Sequence[bytes]) -> dict[str, bytes]:
    """The reply of HGETALL as a mapping."""
    return {name.decode("utf-8", "replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def keyspace_store(queue: Connector) -> KeyspaceStore:
    """The store on the connection of a queue. Raises ConfigError if it has none."""
    return KeyspaceStore(*queue.kept)


def store_of(queue: Connector) -> Store:
    """The store of a queue; that of run() and of tests is in memory."""
    own: Store | None = getattr(queue, "store", None)
    return keyspace_store(queue) if own is None else own
