"""What a store of small facts must be able to do, whoever keeps it. stamps.py, hosts.py, schedule.py, locks.py,
mutex.py and rates.py know only this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


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
