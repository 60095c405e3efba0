"""In place of a server in tests.

Waiting        the jobs sent in a fake: found by id, moved and cancelled by key, with their results
MemoryLocks    what the scripts of a Mutex do, for the threads of this process
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from qd.dispatch.route import Message
from qd.drivers.types import Effect, Found, Keep, Kept, Spot
from qd.payload.format import read

POLL = 0.02  # seconds between two attempts to take a lock


class Waiting:
    """The methods of a connection for single jobs (base.Jobs, and a Connector's keyed ones). For any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._messages: list[Message] = []
        self._sent_at: dict[str, float] = {}  # by id
        self.begun: set[str] = set()  # ids of jobs that run, or have run
        self._kept: dict[str, Kept] = {}

    def all(self) -> list[Message]:
        """In the order in which they were sent."""
        with self._lock:
            return self._messages.copy()

    def clear(self) -> None:
        with self._lock:
            self._messages.clear()

    def add(self, messages: Sequence[Message]) -> None:
        """A job with a key replaces the one that waits under it."""
        with self._lock:
            for message in messages:
                if name := key_name(message):
                    self.cancel_keyed(message.queue, name)
                self._messages.append(message)
                self._sent_at[message.id] = time.time()

    def keep(self, end: Keep) -> None:
        """Keep how a job has ended, with the progress it reported."""
        before = self._kept.get(end.id)
        self._kept[end.id] = Kept(end.status, end.value, before and before.progress, time.time())

    def cancel_keyed(self, queue: str, name: str) -> bool:
        return self._change(self._under(queue, name), None)

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        found = self._under(queue, name)
        if found is None or found.plan is None:
            return False
        self._sent_at[found.id] = time.time()
        return self._change(found, replace(found, delay=delay, plan=found.plan.using({"delay": delay})))

    def keyed_due(self, queue: str, name: str) -> float | None:
        found = self._under(queue, name)
        return None if found is None else self._sent_at[found.id] + found.delay

    def find(
        self, queue: str, id: str, spots: Sequence[Spot] = ("delayed", "ready", "running", "failed")
    ) -> Found | None:
        found = self._first(lambda each: each.queue == queue and id in (each.id, each.uuid))
        spot: Spot = "delayed" if found and found.delay else "ready"
        return Found(queue, spot, found.body, read(found.body), None) if found and spot in spots else None

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        for effect in effects:
            if isinstance(effect, Keep):
                self.keep(effect)
        return self._change(self._first(lambda each: each.body == found.text), None)

    def stop(self, found: Found) -> bool:
        return False

    def kept(self, id: str) -> Kept | None:
        return self._kept.get(id)

    def progress(self, id: str, percent: float, ttl: float) -> None:
        self._kept[id] = Kept(None, b"", percent, None)

    def _under(self, queue: str, name: str) -> Message | None:
        return self._first(lambda each: each.queue == queue and key_name(each) == name)

    def _first(self, fits: Callable[[Message], bool]) -> Message | None:
        with self._lock:
            return next((each for each in self._messages if each.id not in self.begun and fits(each)), None)

    def _change(self, message: Message | None, new: Message | None) -> bool:
        """Replace a message by `new`, or delete it (None). Returns False if it no longer exists."""
        with self._lock:
            if message not in self._messages or message is None:
                return False
            at = self._messages.index(message)
            self._messages[at : at + 1] = [] if new is None else [new]
            return True


def key_name(message: Message) -> str:
    """The key that it waits under, or ""."""
    return ((message.relations and message.relations.key) or "").rpartition(" ")[2]


class MemoryLocks:
    """The part of the Store contract that a Mutex and its Lease use; a free lock goes to the first that takes it. May be
    used from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owners: dict[str, tuple[str, float]] = {}  # lock -> owner, monotonic time at which it expires
        self._last = 0
        self.steps: dict[str, Callable[..., Any]] = {
            "lock_take": self._take,
            "lock_give": self._give,
            "lease_extend": self._extend,
        }

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        with self._changed:
            return self.steps[script](names, *words)

    def get(self, *names: str) -> list[bytes | None]:
        with self._changed:
            return [owner.encode() if (owner := self._owner(name)) else None for name in names]

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """Returns when any lock is freed, and soon: it may have been freed before. Does not watch `wake`."""
        with self._changed:
            return self._changed.wait(min(seconds, POLL))

    def _owner(self, lock: str) -> str | None:
        owner, until = self._owners.get(lock, ("", 0.0))
        return owner if time.monotonic() < until else None

    def _take(self, names: Sequence[str], owner: str, held: int, stay: int, came: int, *spans: int) -> list[Any]:
        lock = names[0]
        if self._owner(lock) in (None, owner):
            self._owners[lock] = owner, time.monotonic() + held / 1000
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return [str(self._last)]
        has, until = self._owners[lock]
        return ["0", max(0, round((until - time.monotonic()) * 1000)), came, 0, has.encode(), b""]

    def _give(self, names: Sequence[str], owner: str, grant: int) -> list[Any]:
        if self._owner(names[0]) != owner:
            return [0, b""]
        del self._owners[names[0]]
        self._changed.notify_all()
        return [1, b""]

    def _extend(self, names: Sequence[str], owner: str, held: int) -> int:
        if self._owner(names[0]) != owner:
            return 0
        self._owners[names[0]] = owner, time.monotonic() + held / 1000
        return 1
