"""So many in so long: sliding windows, exact whoever asks at the same time, by the store's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qd.connectors.keyspace import keys
from qd.store.base import Store

LATE = 5.0  # seconds that one who was told a moment may come late; then its turn is given away
LONGEST = 900.0  # seconds that one is sent away for at most: limits change, and so do those who wait in front


class Answer(NamedTuple):
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

    def start(self, store: Store, owner: str, mark: str, patience: float | None = None) -> Answer:
        """Start now, or be told when. owner: who keeps its turn; mark: of this start, every one has its own; patience:
        seconds that it waits at most, None: without end."""
        spans = (micro(self.per), micro(min(LATE, self.per)), micro(LONGEST))
        most = -1 if patience is None else max(0, round(patience * 1e6))
        wait, at, turn = store.step("admit", self._names, owner, mark, self.most, *spans, most)
        return Answer(wait / 1000, at / 1e6, not turn)

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
