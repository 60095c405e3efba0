"""Which entries without_overlapping run now, on which host: a lease for each, held while the run lives and no longer.

qd:overlap:NAME -> JSON {host, pid, at, owner}     renewed at a third of the lease; freed when the run has ended
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable

from qd.connectors.redis import keys
from qd.schedule import Entry
from qd.store.base import Store
from qd.store.mutex import Lease


class Overlaps:
    """lost: called with the name of an entry that runs and whose lease is somebody else's by now."""

    def __init__(self, store: Store, host: str, seconds: float, lost: Callable[[str, str], None]) -> None:
        self.store, self.host, self.seconds, self._lost = store, host, seconds, lost
        self._held: dict[str, Lease] = {}
        self._over: list[Lease] = []
        self._renew_at = 0.0

    def take(self, entry: Entry) -> str | None:
        """None: this entry may run, and nobody else runs it now. Else who does. Raises ConnectionLost, ServerRefused."""
        self.free_ended()
        note = {"host": self.host, "pid": os.getpid(), "at": round(time.time(), 3), "owner": uuid.uuid4().hex}
        lease = Lease(key_of(entry, self.host), json.dumps(note), self.seconds)
        taken = lease.take(self.store)
        if taken is not None:
            return f"still running on {told(taken)}"
        if not self._held:
            self._renew_at = time.monotonic() + self.seconds / 3
        self._held[entry.name] = lease
        return None

    def end(self, name: str) -> None:
        """The run has ended, or never began. Freed at the next call that asks the server."""
        lease = self._held.pop(name, None)
        if lease is not None:
            self._over.append(lease)

    def renew(self) -> None:
        """What has ended is freed, and, when it is time, what runs is renewed. Raises ConnectionLost, ServerRefused; then
        the next call does it."""
        self.free_ended()
        if not self._held or time.monotonic() < self._renew_at:
            return
        for name, lease in list(self._held.items()):
            if not lease.extend(self.store):
                self._take_again(name, lease)
        self._renew_at = time.monotonic() + self.seconds / 3

    def free_ended(self) -> None:
        while self._over:
            self._over[-1].free(self.store)
            self._over.pop()

    @property
    def wants(self) -> float:
        """Seconds until it wants to renew."""
        if self._over:
            return 0.0
        return max(0.0, self._renew_at - time.monotonic()) if self._held else float("inf")

    def _take_again(self, name: str, lease: Lease) -> None:
        """It ran out while the server was away, or somebody cleared it: the run goes on, and no other is to begin."""
        taken = lease.take(self.store)
        if taken is not None:
            del self._held[name]
        self._lost(name, "" if taken is None else told(taken))


def key_of(entry: Entry, host: str) -> str:
    """One for all hosts; of an entry on_every_host one for each."""
    return keys.overlap(f"{host} {entry.name}" if entry.every_host else entry.name)


def told(note: str) -> str:
    """Who has a lease, in words: "web1 (pid 412) since 12:00:01"."""
    try:
        found = json.loads(note)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found["at"])))
        return f"{found['host']} (pid {found['pid']}) since {clock}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return "another host"
