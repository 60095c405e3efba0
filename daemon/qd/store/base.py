"""What a store of small facts must be able to do, whoever keeps it. stamps.py, hosts.py, schedule.py, locks.py,
mutex.py and rates.py know only this.

The store on a keyspace, and the prefix that every name in it stands under.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from qd.drivers.base import Connector
from qd.drivers.keyspace.base import Arg, Keyspace
from qd.drivers.keyspace.base import script as text_of


class Store(Protocol):
    """Names to bytes, and names to fields of bytes. Every call may raise ConnectionLost or ServerRefused."""

    def now(self) -> float:
        """Unix seconds by the store's clock, the only one that all hosts share."""

    def get(self, *names: str) -> list[bytes | None]:
        """Their values in this order. None: not there."""

    def put(self, name: str, value: bytes, seconds: float | None = None) -> None:
        """Set it; with `seconds` it vanishes by itself after that time."""

    def take(self, name: str) -> bytes | None:
        """Delete it. Returns what was there."""

    def fields(self, name: str) -> Mapping[str, bytes]:
        """Every field of `name`, {} when it is not there."""

    def token(self, name: str) -> None:
        """Append a token to the list `name`, so that one who waits on it looks again."""

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """Take a token from the list `name`, waited for as long as `seconds`. False: none came, or the file descriptor
        `wake` was readable. Whatever ends it from outside leaves a connection that can be used."""

    def left(self, name: str) -> float:
        """Seconds until it vanishes by itself; 0: it is not there, or stays."""

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        """Run the step called `script` (a .lua file of the Redis connector) on these names: all of it or nothing."""

    def names(self, start: str, most: int) -> list[str]:
        """Names that begin with `start`, as far as a look through about `most` of all names finds them."""


STEP = 1000  # names the server looks at in one call


class KeyspaceStore:
    """Belongs to the thread and process of its keyspace."""

    def __init__(self, space: Keyspace, prefix: str = "") -> None:
        self.space = space
        self.prefix = prefix

    def now(self) -> float:
        seconds, micros = self.space.call("TIME")
        return int(seconds) + int(micros) / 1_000_000

    def get(self, *names: str) -> list[bytes | None]:
        found: list[bytes | None] = self.space.call("MGET", *[self.prefix + name for name in names]) if names else []
        return found

    def put(self, name: str, value: bytes, seconds: float | None = None) -> None:
        expiry: tuple[Arg, ...] = () if seconds is None else ("PX", max(1, round(seconds * 1000)))
        self.space.call("SET", self.prefix + name, value, *expiry)

    def take(self, name: str) -> bytes | None:
        # GETDEL is younger than the oldest server that is still in use; MULTI is not.
        replies = self.space.call_many(
            [("MULTI",), ("GET", self.prefix + name), ("DEL", self.prefix + name), ("EXEC",)]
        )
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        found: bytes | None = replies[-1][0]
        return found

    def fields(self, name: str) -> Mapping[str, bytes]:
        flat: list[bytes] = self.space.call("HGETALL", self.prefix + name)
        return {flat[at].decode("utf-8", "replace"): flat[at + 1] for at in range(0, len(flat), 2)}

    def token(self, name: str) -> None:
        self.space.call("RPUSH", self.prefix + name, "1")

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        return self.space.pop(self.prefix + name, seconds, wake)

    def left(self, name: str) -> float:
        return max(0, int(self.space.call("PTTL", self.prefix + name))) / 1000

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        return text_of(script).call(self.space, [self.prefix + name for name in names], *words)

    def names(self, start: str, most: int) -> list[str]:
        found: set[str] = set()
        pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in self.prefix + start) + "*"
        cursor, looked = b"0", 0
        while looked < most:
            cursor, names = self.space.call("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
            found.update(name.decode("utf-8", "replace").removeprefix(self.prefix) for name in names)
            looked += STEP
            if cursor == b"0":
                break
        return sorted(found)


def beside(queue: Connector) -> KeyspaceStore:
    """The store beside a queue, over its connection. Raises ConfigError where it has none."""
    space, prefix = queue.kept
    return KeyspaceStore(space, prefix)


def store_of(queue: Connector) -> Store:
    from qd.store.base import beside  # whose app has no such middleware loads no driver for it

    own: Store | None = getattr(queue, "store", None)  # of one that is made up, for run() and for tests
    return beside(queue) if own is None else own
