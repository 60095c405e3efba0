"""Places that only so many may have at a time: a lock is one with one place. Built on the Store contract.

An owner is who wants the place, for as long as it wants it (a job, over its attempts and crashes); a holder is who took it
in its name (one attempt). An owner that comes back has its place again, and from then on only its new holder can give it
back: one that was thought dead frees nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from qd.connectors.keyspace import keys
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
