"""Which entries without_overlapping run now, and where: a lease for each, held while the run lives and no longer.

qd:overlap:NAME -> JSON {host, pid, at, owner}     renewed at a third of the lease; freed when the run has ended

pid is the scheduler's until the run has one. Nothing here is asked for while a run begins or ends: that is written down, and
done at the next call of `renew`.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qd.connectors.redis import keys
from qd.schedule import Entry
from qd.store.base import Store
from qd.store.mutex import Lease

AGAIN = 0.5  # seconds after a call that found no server


@dataclass(slots=True)
class Held:
    """note: what stands in the store; pid: what is to stand there, 0: that; renewed: monotonic seconds."""

    lease: Lease
    note: dict[str, Any]
    renewed: float
    pid: int = 0


class Overlaps:
    """lost: called with the name of an entry that runs and whose lease was gone, and what became of it."""

    def __init__(self, store: Store, host: str, seconds: float, lost: Callable[[str, str], None]) -> None:
        self.store, self.host, self.seconds, self._lost = store, host, seconds, lost
        self._held: dict[str, Held] = {}
        self._over: list[Lease] = []
        self._again_at = 0.0

    def take(self, entry: Entry) -> str | None:
        """None: this entry may run, and nobody else runs it now. Else who does. Raises ConnectionLost, ServerRefused."""
        self._free_ended()
        note = {"host": self.host, "pid": os.getpid(), "at": round(time.time(), 3), "owner": uuid.uuid4().hex}
        lease, at = Lease(key_of(entry, self.host), json.dumps(note), self.seconds), time.monotonic()
        taken = lease.take(self.store)
        if taken is not None:
            return f"still running on {told(taken)}"
        self._held[entry.name] = Held(lease, note, at)
        return None

    def begun(self, name: str, pid: int) -> None:
        """Its run is the process `pid`."""
        if (held := self._held.get(name)) is not None:
            held.pid = pid

    def end(self, name: str) -> None:
        """The run has ended, or never began."""
        if (held := self._held.pop(name, None)) is not None:
            self._over.append(held.lease)
            if held.pid:  # it may stand there already
                self._over.append(self._named(held))

    def renew(self) -> None:
        """What has ended is freed, and what runs is renewed where it is time. Raises ConnectionLost, ServerRefused; then the
        next call goes on."""
        self._again_at = time.monotonic() + AGAIN
        self._free_ended()
        for name, held in list(self._held.items()):
            if held.pid or time.monotonic() >= held.renewed + self.seconds / 3:
                self._renew(name, held)
        self._again_at = 0.0

    @property
    def wants(self) -> float:
        """Seconds until it wants to renew; inf: nothing is held."""
        at = time.monotonic()
        if self._over or any(held.pid for held in self._held.values()):
            return max(0.0, self._again_at - at)
        renewed = min((held.renewed for held in self._held.values()), default=float("inf"))
        return max(0.0, renewed + self.seconds / 3 - at, self._again_at - at)

    def _renew(self, name: str, held: Held) -> None:
        at, next_one = time.monotonic(), self._named(held)
        if held.lease.pass_to(self.store, next_one.owner) is not None:
            held.lease, held.renewed, held.pid = next_one, at, 0
            return
        cleared = at < held.renewed + self.seconds
        taken = "somebody cleared it" if cleared else held.lease.take(self.store)
        if taken is None:  # it ran out while the server was away
            held.renewed = at
            self._lost(name, "it ran out, and was taken again")
            return
        del self._held[name]
        self._lost(name, taken if cleared else f"it ran out, and {told(taken)} runs it too")

    def _named(self, held: Held) -> Lease:
        if held.pid:
            held.note["pid"] = held.pid
        return Lease(held.lease.key, json.dumps(held.note), self.seconds)

    def _free_ended(self) -> None:
        while self._over:
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
