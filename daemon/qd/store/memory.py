"""Locks without a server, for tests: what the scripts of a Mutex do, in this process and for its threads alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


class MemoryLocks:
    """The part of the Store contract that a Mutex asks, with the extending of its Lease. May be used from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owners: dict[str, tuple[str, float]] = {}  # lock -> owner, monotonic moment at which it falls free
        self._lines: dict[str, dict[str, float]] = {}  # lock -> waiter, in order -> until when it counts as there
        self._tokens: set[str] = set()  # wake lists that have one
        self._last = 0
        self.steps: dict[str, Callable[..., Any]] = {
            "lock_take": self._take,
            "lock_give": self._give,
            "lock_wake": self._wake,
            "lease_extend": self._extend,
        }

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        with self._changed:
            return self.steps[script](names, *words)

    def get(self, *names: str) -> list[bytes | None]:
        with self._changed:
            return [owner.encode() if (owner := self._owner(name)) else None for name in names]

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """wake is looked at when it is over: half a second at most, as a Mutex asks."""
        with self._changed:
            came = self._changed.wait_for(lambda: name in self._tokens, seconds)
            self._tokens.discard(name)
            return came

    def _owner(self, lock: str) -> str | None:
        owner, until = self._owners.get(lock, ("", 0.0))
        return owner if time.monotonic() < until else None

    def _take(
        self, names: Sequence[str], owner: str, held: int, stay: int, came: int, there: int, grant: int, kept: int
    ) -> list[Any]:
        lock, line = names[0], self._there(names[0])
        handed = ""
        if self._owner(lock) is None and line and next(iter(line)) != owner:
            handed = self._hand_over(lock, grant)
        if self._owner(lock) in (None, owner):
            line.pop(owner, None)
            self._owners[lock] = owner, time.monotonic() + held / 1000
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return [str(self._last)]
        if stay:
            line[owner] = time.monotonic() + there / 1e6
        else:
            line.pop(owner, None)
        has, until = self._owners[lock]
        left = max(0, round((until - time.monotonic()) * 1000))
        return ["0", left, str(came or 1), list(line).index(owner) if stay else 0, has.encode(), handed.encode()]

    def _give(self, names: Sequence[str], owner: str, grant: int) -> list[Any]:
        lock, line = names[0], self._there(names[0])
        line.pop(owner, None)
        if self._owner(lock) != owner:
            return [0, b""]
        del self._owners[lock]
        return [1, self._hand_over(lock, grant).encode() if line else b""]

    def _extend(self, names: Sequence[str], owner: str, held: int) -> int:
        if self._owner(names[0]) != owner:
            return 0
        self._owners[names[0]] = owner, time.monotonic() + held / 1000
        return 1

    def _wake(self, names: Sequence[str], kept: int) -> int:
        self._tokens.add(names[0])
        self._changed.notify_all()
        return 1

    def _there(self, lock: str) -> dict[str, float]:
        """Its line, without those that do not ask any more."""
        line = self._lines.setdefault(lock, {})
        for waiter in [each for each, until in line.items() if time.monotonic() >= until]:
            del line[waiter]
        return line

    def _hand_over(self, lock: str, grant: int) -> str:
        line = self._lines[lock]
        first = next(iter(line))
        del line[first]
        self._owners[lock] = first, time.monotonic() + grant / 1000
        return first
