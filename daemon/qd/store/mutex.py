"""What one has at a time, until it gives it back or its time is over. Built on the Store contract.

Only who has it can give it back or go on with it: compared and done in one step, so that nobody who was slow takes away
what is another's by then.
"""

from __future__ import annotations

from dataclasses import dataclass

from qd.store.base import Store


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

    def free(self, store: Store) -> bool:
        """False: it was not ours any more; whoever has it keeps it."""
        return bool(store.step("free", [self.key], self.owner))


def ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
