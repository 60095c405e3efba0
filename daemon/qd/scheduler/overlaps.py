"""Which entries without_overlapping run now, and where: a lease for each, held while the run lives and no longer.

qd:overlap:NAME -> JSON {host, pid, at, owner}     renewed at a third of the lease; freed when the run has ended

pid is the scheduler's until the run has one. Nothing here is asked for while a run begins or ends: that is written down, and
done at the next call of `renew`.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qd.drivers.keyspace import keys
from qd.errors import ServerBusy, ServerRefused
from qd.schedule.entry import Entry
from qd.store.base import Store
from qd.store.locks import Lease

AGAIN = 0.5  # seconds after a call that found no server
Said = Callable[[str, str], None]


@dataclass(slots=True, eq=False)
class HeldOverlap:
    """note: what stands in the store; pid: what is to stand there, 0: that; renewed: monotonic seconds; again_at: not before
    that, after the server has refused it."""

    name: str
    lease: Lease
    note: dict[str, Any]
    renewed: float
    pid: int = 0
    again_at: float = 0.0


class Overlaps:
    """One lease is one run's: an entry may have several, where an operator has cleared that of the first.

    lost: called with the name of an entry that runs and whose lease was gone, and what became of it.
    refused: with that of an entry whose lease the server refuses, and why; once until it is taken again.
    """

    def __init__(self, store: Store, host: str, seconds: float, lost: Said, refused: Said) -> None:
        self.store, self.host, self.seconds = store, host, seconds
        self._lost, self._refused = lost, refused
        self._taken: dict[str, HeldOverlap] = {}
        self._held: list[HeldOverlap] = []
        self._over: list[Lease] = []
        self._again_at = 0.0
        self._said: set[str] = set()

    def take(self, entry: Entry) -> str | None:
        """None: this entry may run, and nobody else runs it now; `begun` or `forgo` is to follow. Else who does, or why it
        cannot be known. Raises ConnectionLost."""
        note = {"host": self.host, "pid": os.getpid(), "at": round(time.time(), 3), "owner": uuid.uuid4().hex}
        lease, at = Lease(key_of(entry, self.host), json.dumps(note), self.seconds), time.monotonic()
        try:
            self._free_ended()
            taken = lease.take(self.store)
        except ServerRefused as error:
            return self._tell(entry.name, lease, error)
        self._said.discard(entry.name)
        if taken is not None:
            return f"still running on {told(taken)}"
        self._taken[entry.name] = HeldOverlap(entry.name, lease, note, at)
        return None

    def begun(self, name: str, pid: int) -> HeldOverlap | None:
        """Its run is the process `pid`. None: no lease was taken for it."""
        if (held := self._taken.pop(name, None)) is not None:
            held.pid = pid
            self._held.append(held)
        return held

    def forgo(self, name: str) -> None:
        """The run never began."""
        self.end(self._taken.pop(name, None))

    def end(self, held: HeldOverlap | None) -> None:
        """The run has ended."""
        if held is None:
            return
        self._held = [each for each in self._held if each is not held]
        self._over.append(held.lease)
        if held.pid:  # it may stand there already
            self._over.append(self._named(held))

    def renew(self) -> None:
        """What has ended is freed, and what runs is renewed where it is time. Raises ConnectionLost; then the next call goes
        on. A server that refuses one lease is asked for the others."""
        self._again_at = time.monotonic() + AGAIN
        busy: ServerBusy | None = None
        self._free_ended()
        for held in list(self._held):
            if time.monotonic() >= self._due(held):
                try:
                    self._renew(held)
                except ServerRefused as error:
                    self._later(held)
                    self._tell(held.name, held.lease, error)
                except ServerBusy as error:
                    self._later(held)
                    busy = error
        self._again_at = 0.0
        if busy is not None:
            raise busy

    def later(self) -> None:
        """The server is away: nothing is wanted for a while."""
        self._again_at = time.monotonic() + AGAIN

    @property
    def wants(self) -> float:
        """Seconds until it wants to renew; inf: nothing is held."""
        due = 0.0 if self._over else min(map(self._due, self._held), default=math.inf)
        return max(0.0, max(due, self._again_at) - time.monotonic())

    def _due(self, held: HeldOverlap) -> float:
        return max(held.again_at, 0.0 if held.pid else held.renewed + self.seconds / 3)

    def _later(self, held: HeldOverlap) -> None:
        held.again_at = time.monotonic() + self.seconds / 3

    def _tell(self, name: str, lease: Lease, error: ServerRefused) -> str:
        why = f"its lease {lease.key} is refused by the server: {error}"
        if name not in self._said:
            self._said.add(name)
            self._refused(name, why)
        return why

    def _renew(self, held: HeldOverlap) -> None:
        at, next_one = time.monotonic(), self._named(held)
        if held.lease.pass_to(self.store, next_one.owner) is not None:
            held.lease, held.renewed, held.pid = next_one, at, 0
            self._said.discard(held.name)
            return
        cleared = at < held.renewed + self.seconds
        taken = "somebody cleared it" if cleared else held.lease.take(self.store)
        if taken is None:  # it ran out while the server was away
            held.renewed = at
            self._lost(held.name, "it ran out, and was taken again")
            return
        self._held.remove(held)
        self._lost(held.name, taken if cleared else f"it ran out, and {told(taken)} runs it too")

    def _named(self, held: HeldOverlap) -> Lease:
        if held.pid:
            held.note["pid"] = held.pid
        return Lease(held.lease.key, json.dumps(held.note), self.seconds)

    def _free_ended(self) -> None:
        while self._over:
            with suppress(ServerRefused):  # it holds something else by now
                self._over[-1].free(self.store)
            self._over.pop()


def key_of(entry: Entry, host: str) -> str:
    """One for all hosts; of an entry on_every_host one for each."""
    return keys.overlap(keys.of_host(host, entry.name) if entry.every_host else entry.name)


def told(note: str) -> str:
    """Who has a lease, in words: "web1 (pid 412) since 12:00:01"."""
    try:
        found = json.loads(note)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found["at"])))
        return f"{found['host']} (pid {found['pid']}) since {clock}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return "another host"
