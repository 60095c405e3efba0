"""So many in so long: sliding windows, exact whoever asks at the same time, by the store's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qd.connectors.redis import keys
from qd.store.base import Store

LATE = 5.0  # seconds that one who was told a moment may come late; then its turn is given away
LONGEST = 900.0  # seconds that one is sent away for at most: limits change, and so do those who wait in front


class Answer(NamedTuple):
    """wait: seconds until it is to ask again, 0: it has started. at: unix seconds of its start, or of its turn."""

    wait: float
    at: float


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `most` starts in any `per` seconds under this name."""

    name: str
    most: int
    per: float

    def start(self, store: Store, owner: str, mark: str) -> Answer:
        """Start now, or be told when. owner: who keeps its turn; mark: of this start, every one has its own."""
        names = [keys.starts(self.name), keys.turns(self.name), keys.due(self.name)]
        wait, at = store.step(
            "admit", names, owner, mark, self.most, micro(self.per), micro(min(LATE, self.per)), micro(LONGEST)
        )
        return Answer(wait / 1000, at / 1e6)


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
