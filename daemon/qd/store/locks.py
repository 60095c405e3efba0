"""Locks and limits on the Store contract. Each method is one atomic script, so a slow owner never frees another's lock.

    Places     at most N owners at a time
    Lease      one owner, until it is freed or expires
    Mutex      a Lease with a queue of waiters
    Rate       at most N starts in a sliding window, by the store's clock
    Strikes    a pause after N errors in a window

An owner is a unique text. The owner of a place is a job, across its attempts and crashes; the holder is one
attempt. An owner that returns gets its place again, and from then on only the new holder can free it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qd.drivers.keyspace import keys
from qd.store.base import Store


@dataclass(frozen=True, slots=True)
class Places:
    """key: as keys.py makes it. most: how many places there are. seconds: how long a place is held at most."""

    key: str
    most: int
    seconds: float

    def take(self, store: Store, owner: str, holder: str) -> float:
        """Returns 0 if `owner` has a place, else the seconds until the first place expires."""
        names = [self.key, keys.places_of(owner)]
        return float(store.step("hold", names, owner, holder, self.most, ms(self.seconds), self.key)) / 1000

    def free(self, store: Store, owner: str, holder: str) -> bool:
        """Returns False if this holder no longer held it."""
        return bool(store.step("unhold", [self.key, keys.places_of(owner)], owner, holder, self.key))


THERE = 1.5  # seconds for which a waiter counts as waiting after each `take`; it calls `take` three times as often
GRANT = 0.5  # seconds for which a lock is reserved for the waiter it was handed to; a late waiter keeps its place
KEPT = 3600.0  # seconds that the last token is remembered after its ttl: how far the server's clock may go back
WOKEN = 3.0  # seconds after which the token that wakes a waiter expires


@dataclass(frozen=True, slots=True)
class Lease:
    """key: as keys.py makes it; its value is the owner. seconds: how long it is held after each take or extend."""

    key: str
    owner: str
    seconds: float

    def take(self, store: Store) -> str | None:
        """Returns None if it is ours, for `seconds` from now on; else its owner."""
        found: bytes = store.step("lease_take", [self.key], self.owner, ms(self.seconds))
        return None if found == self.owner.encode() else found.decode("utf-8", "replace")

    def extend(self, store: Store) -> bool:
        """Hold it for `seconds` from now on. Returns False if it is no longer ours."""
        return bool(store.step("lease_extend", [self.key], self.owner, ms(self.seconds)))

    def pass_to(self, store: Store, owner: str) -> Lease | None:
        """Let `owner` hold it for `seconds` from now on. Safe to repeat after a lost reply. Returns None if it was no longer
        ours."""
        passed = store.step("lease_pass", [self.key], self.owner, owner, ms(self.seconds))
        return Lease(self.key, owner, self.seconds) if passed else None

    def free(self, store: Store) -> bool:
        """Returns False if it was no longer ours; its present owner keeps it."""
        return bool(store.step("free", [self.key], self.owner))


class LockReply(NamedTuple):
    """token: larger than all earlier ones; 0 if another owner has the lock.

    The other fields describe that case. left: seconds until the lock expires, None: it does not. came: unix microseconds of
    the waiter's first `take`. front: how many waiters are before it. by: the owner of the lock.
    """

    token: int
    left: float | None = None
    came: int = 0
    front: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class Mutex:
    """The lock called `name`, for one owner or waiter."""

    name: str
    owner: str

    def take(self, store: Store, seconds: float, *, stay: bool, came: int = 0) -> LockReply:
        """Take it for `seconds`; if it is taken, wait in line since `came` (stay) or leave the line. A free lock goes to the
        first waiter in line, whichever client calls. Safe to repeat after a lost reply."""
        names = [keys.mutex(self.name), keys.fence(self.name), keys.line(self.name), keys.seen(self.name)]
        spans = (round(THERE * 1e6), ms(GRANT), ms(KEPT))
        token, *rest = store.step("lock_take", names, self.owner, ms(seconds), int(stay), came, *spans)
        if int(token):
            return LockReply(int(token))
        left, came, front, by, handed = rest
        self._wake(store, handed)
        return LockReply(0, None if left < 0 else left / 1000, int(came), front, by.decode("utf-8", "replace"))

    def extend(self, store: Store, seconds: float) -> bool:
        """Hold it for `seconds` from now on. Returns False if it is no longer ours."""
        return Lease(keys.mutex(self.name), self.owner, seconds).extend(store)

    def give(self, store: Store) -> bool:
        """Free it, or hand it to the first waiter in line; and leave the line. Returns False if it was not ours."""
        names = [keys.mutex(self.name), keys.line(self.name), keys.seen(self.name)]
        ours, handed = store.step("lock_give", names, self.owner, ms(GRANT))
        self._wake(store, handed)
        return bool(ours)

    def wait(self, store: Store, seconds: float) -> None:
        """Return once it may have been handed to us, or `seconds` are over."""
        store.pop(self.woken_by, seconds)

    @property
    def woken_by(self) -> str:
        """The list whose token ends our wait."""
        return keys.wake(self.name, self.owner)

    def by(self, store: Store) -> str | None:
        """Its owner, or the waiter it was handed to. None: it is free."""
        (found,) = store.get(keys.mutex(self.name))
        return None if found is None else found.decode("utf-8", "replace")

    def _wake(self, store: Store, waiter: bytes) -> None:
        """The waiter owns the lock already: this only saves it the time until its next `take`."""
        if waiter:
            store.step("lock_wake", [keys.wake(self.name, waiter.decode("utf-8", "replace"))], ms(WOKEN))


def ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


LATE = 5.0  # seconds that an owner may be late for its turn; then the next owner gets it
LONGEST = 900.0  # seconds of the longest wait that is returned: limits change, and so does the line


class RateReply(NamedTuple):
    """wait: seconds until the next `start`, 0: it has started. at: unix seconds of its start, or of its turn. late: its turn
    would come after its patience, so it has none."""

    wait: float
    at: float
    late: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `most` starts in any `per` seconds under this name."""

    name: str
    most: int
    per: float

    def start(self, store: Store, owner: str, mark: str, patience: float | None = None) -> RateReply:
        """Start now, or get a turn. owner: keeps its turn between calls. mark: unique to this start. patience: seconds to
        wait at most; None: forever."""
        spans = (micro(self.per), micro(min(LATE, self.per)), micro(LONGEST))
        most = -1 if patience is None else max(0, round(patience * 1e6))
        wait, at, turn = store.step("admit", self._names, owner, mark, self.most, *spans, most)
        return RateReply(wait / 1000, at / 1e6, not turn)

    def leave(self, store: Store, owner: str) -> None:
        """Give up the turn of `owner`."""
        store.step("admit_leave", self._names[1:], owner)

    def left(self, store: Store) -> int:
        """How many may start now, in addition to the owners that have a turn."""
        return max(0, self.most - int(store.step("admit_left", self._names, micro(self.per), micro(LONGEST))))

    @property
    def _names(self) -> list[str]:
        return [keys.starts(self.name), keys.turns(self.name), keys.due(self.name)]


@dataclass(frozen=True, slots=True)
class Strikes:
    """After `most` errors within `within` seconds, everything under this name rests for `wait` seconds."""

    name: str
    most: int
    within: float
    wait: float

    def resting(self, store: Store) -> float:
        """Seconds until the rest ends; 0: there is none."""
        return store.left(keys.rest(self.name))

    def count(self, store: Store, mark: str) -> bool:
        """Count an error. Returns True if it begins a rest."""
        names = [keys.errors(self.name), keys.rest(self.name)]
        return bool(store.step("strike", names, mark, self.most, micro(self.within), ms(self.wait)))


def micro(seconds: float) -> int:
    return max(1, round(seconds * 1_000_000))
