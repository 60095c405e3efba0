"""Locks and limits on the Store contract. Each method is one atomic script, so a slow owner never frees what another has.

    Places     at most N owners at a time
    Lease      one owner, until it is freed or expires
    Mutex      a Lease with a line of waiters
    Rate       at most N starts in a sliding window, by the store's clock
    Strikes    a pause after N errors in a window

An owner of a place is a job, over its attempts and crashes; the holder is one attempt. An owner that returns gets its place
again, and from then on only the new holder can free it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qd.drivers.keyspace import keys
from qd.store.base import Store


@dataclass(frozen=True, slots=True)
class Places:
    """key: as keys.py makes it. most: how many places there are. seconds: for which one is held at most."""

    key: str
    most: int
    seconds: float

    def take(self, store: Store, owner: str, holder: str) -> float:
        """0: `owner` has a place. Else the seconds until the first of those that have one loses it by itself."""
        milliseconds = max(1, round(self.seconds * 1000))
        names = [self.key, keys.places_of(owner)]
        return float(store.step("hold", names, owner, holder, self.most, milliseconds, self.key)) / 1000

    def free(self, store: Store, owner: str, holder: str) -> bool:
        """False: it was not held by this holder any more."""
        return bool(store.step("unhold", [self.key, keys.places_of(owner)], owner, holder, self.key))


THERE = 1.5  # seconds for which a waiter counts as there after it has asked; it asks three times as often
GRANT = 0.5  # seconds that a waiter which was handed the lock has to come and get it; one that is late keeps its place
KEPT = 3600.0  # seconds that the last token is remembered after its ttl: how far the server's clock may go back
WOKEN = 3.0  # seconds that the token of a waiter waits for it


@dataclass(frozen=True, slots=True)
class Lease:
    """key: as keys.py makes it, of a string that holds its owner. owner: a text that no other has. seconds: for which it is
    held, from each take or extend on."""

    key: str
    owner: str
    seconds: float

    def take(self, store: Store) -> str | None:
        """None: it is ours, for `seconds` from now on. Else who has it."""
        found: bytes = store.step("lease_take", [self.key], self.owner, ms(self.seconds))
        return None if found == self.owner.encode() else found.decode("utf-8", "replace")

    def extend(self, store: Store) -> bool:
        """Hold it for `seconds` from now on. False: it is not ours any more."""
        return bool(store.step("lease_extend", [self.key], self.owner, ms(self.seconds)))

    def pass_to(self, store: Store, owner: str) -> Lease | None:
        """Let `owner` hold it for `seconds` from now on; once more does no harm, after an answer that was lost. None: it
        was not ours any more."""
        passed = store.step("lease_pass", [self.key], self.owner, owner, ms(self.seconds))
        return Lease(self.key, owner, self.seconds) if passed else None

    def free(self, store: Store) -> bool:
        """False: it was not ours any more; whoever has it keeps it."""
        return bool(store.step("free", [self.key], self.owner))


class LockReply(NamedTuple):
    """token: larger than all before it; 0: another has the lock. The others are about that: left: seconds until the lock
    falls free by itself, None: it does not. came: microseconds at which the waiter came. front: how many stand before it.
    by: who has the lock."""

    token: int
    left: float | None = None
    came: int = 0
    front: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class Mutex:
    """The lock called `name`, as one sees it who wants it or has it. owner: a text that no other has."""

    name: str
    owner: str

    def take(self, store: Store, seconds: float, *, stay: bool, came: int = 0) -> LockReply:
        """Take it for `seconds`, or stand in line (stay) from `came` on, or leave the line. A lock that is free goes to the
        first one in line, whoever asks. To ask again after a lost reply is right."""
        names = [keys.mutex(self.name), keys.fence(self.name), keys.line(self.name), keys.seen(self.name)]
        spans = (round(THERE * 1e6), ms(GRANT), ms(KEPT))
        token, *rest = store.step("lock_take", names, self.owner, ms(seconds), int(stay), came, *spans)
        if int(token):
            return LockReply(int(token))
        left, came, front, by, handed = rest
        self._wake(store, handed)
        return LockReply(0, None if left < 0 else left / 1000, int(came), front, by.decode("utf-8", "replace"))

    def extend(self, store: Store, seconds: float) -> bool:
        """Hold it for `seconds` from now on. False: it is not ours any more."""
        return Lease(keys.mutex(self.name), self.owner, seconds).extend(store)

    def give(self, store: Store) -> bool:
        """Give it back, to the first one in line where there is one; and leave the line. False: it was not ours."""
        names = [keys.mutex(self.name), keys.line(self.name), keys.seen(self.name)]
        ours, handed = store.step("lock_give", names, self.owner, ms(GRANT))
        self._wake(store, handed)
        return bool(ours)

    def wait(self, store: Store, seconds: float, wake: int = -1) -> None:
        """Until it may have been handed to us, or `seconds` are over, or the descriptor `wake` is readable."""
        store.pop(keys.wake(self.name, self.owner), seconds, wake)

    def by(self, store: Store) -> str | None:
        """Who has it, or was handed it. None: nobody."""
        (found,) = store.get(keys.mutex(self.name))
        return None if found is None else found.decode("utf-8", "replace")

    def _wake(self, store: Store, waiter: bytes) -> None:
        """What it was handed is its own already: this only saves it the time until it asks."""
        if waiter:
            store.step("lock_wake", [keys.wake(self.name, waiter.decode("utf-8", "replace"))], ms(WOKEN))


def ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


LATE = 5.0  # seconds that one who was told a moment may come late; then its turn is given away
LONGEST = 900.0  # seconds that one is sent away for at most: limits change, and so do those who wait in front


class RateReply(NamedTuple):
    """wait: seconds until it is to ask again, 0: it has started. at: unix seconds of its start, or of its turn. late: it
    would wait too long for that, and has no turn."""

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
        """Start now, or be told when. owner: who keeps its turn; mark: of this start, every one has its own; patience:
        seconds that it waits at most, None: without end."""
        spans = (micro(self.per), micro(min(LATE, self.per)), micro(LONGEST))
        most = -1 if patience is None else max(0, round(patience * 1e6))
        wait, at, turn = store.step("admit", self._names, owner, mark, self.most, *spans, most)
        return RateReply(wait / 1000, at / 1e6, not turn)

    def leave(self, store: Store, owner: str) -> None:
        """Give its turn away."""
        store.step("admit_leave", self._names[1:], owner)

    def left(self, store: Store) -> int:
        """How many may start now, beside those who have their turns."""
        return max(0, self.most - int(store.step("admit_left", self._names, micro(self.per), micro(LONGEST))))

    @property
    def _names(self) -> list[str]:
        return [keys.starts(self.name), keys.turns(self.name), keys.due(self.name)]


@dataclass(frozen=True, slots=True)
class Strikes:
    """After `most` errors in `within` seconds all under this name rest for `wait` seconds."""

    name: str
    most: int
    within: float
    wait: float

    def resting(self, store: Store) -> float:
        """Seconds that are left of the rest; 0: there is none."""
        return store.left(keys.rest(self.name))

    def count(self, store: Store, mark: str) -> bool:
        """One more error. True: it was the one too many."""
        names = [keys.errors(self.name), keys.rest(self.name)]
        rest = max(1, round(self.wait * 1000))
        return bool(store.step("strike", names, mark, self.most, micro(self.within), rest))


def micro(seconds: float) -> int:
    return max(1, round(seconds * 1_000_000))
