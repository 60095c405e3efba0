"""Which without_overlapping() entries run now, and where: a lease for each, held as long as the run lives.

qd:overlap:NAME -> JSON {host, pid, at, owner}     renewed at a third of the lease; freed when the run has ended

pid is the scheduler's until the run has one. The beginning and end of a run do not query the server: they are noted, and
the next call of `renew` does the rest.
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

AGAIN = 0.5  # seconds until the next attempt, if the server is unreachable
Report = Callable[[str, str], None]


@dataclass(slots=True, eq=False)
class HeldOverlap:
    """note: as stored. pid: to be stored next, 0: no change. renewed: monotonic seconds. again_at: the earliest next attempt
    after a refusal."""

    name: str
    lease: Lease
    note: dict[str, Any]
    renewed: float
    pid: int = 0
    again_at: float = 0.0


class Overlaps:
    """Each run has its own lease: an entry may have several, if an operator has cleared that of the first run.

    lost: called with the name of a running entry whose lease was gone, and what happened to it.
    refused: called with the name of an entry whose lease the server refuses, and why; once until it is taken again.
    """

    def __init__(self, store: Store, host: str, seconds: float, lost: Report, refused: Report) -> None:
        self.store, self.host, self.seconds = store, host, seconds
        self._lost, self._refused = lost, refused
        self._taken: dict[str, HeldOverlap] = {}
        self._held: list[HeldOverlap] = []
        self._ended: list[Lease] = []
        self._again_at = 0.0
        self._reported: set[str] = set()

    def take(self, entry: Entry) -> str | None:
        """None if the entry may run: `begun` or `forgo` must follow. Else where it runs, or why that is unknown. Raises
        ConnectionLost."""
        note = {"host": self.host, "pid": os.getpid(), "at": round(time.time(), 3), "owner": uuid.uuid4().hex}
        lease, at = Lease(key_of(entry, self.host), json.dumps(note), self.seconds), time.monotonic()
        try:
            self._free_ended()
            taken = lease.take(self.store)
        except ServerRefused as error:
            return self._refuse(entry.name, lease, error)
        self._reported.discard(entry.name)
        if taken is not None:
            return f"still running on {holder_text(taken)}"
        self._taken[entry.name] = HeldOverlap(entry.name, lease, note, at)
        return None

    def begun(self, name: str, pid: int) -> HeldOverlap | None:
        """Its run has this pid. Returns None if no lease was taken for it."""
        if (held := self._taken.pop(name, None)) is not None:
            held.pid = pid
            self._held.append(held)
        return held

    def forgo(self, name: str) -> None:
        """The run was not started."""
        self.end(self._taken.pop(name, None))

    def end(self, held: HeldOverlap | None) -> None:
        """The run has ended."""
        if held is None:
            return
        self._held = [each for each in self._held if each is not held]
        self._ended.append(held.lease)
        if held.pid:  # a lost reply: it may be stored already
            self._ended.append(self._named(held))

    def renew(self) -> None:
        """Free ended leases, and renew the others when it is time. If it raises ConnectionLost, the next call continues.
        A refusal of one lease does not stop the others."""
        self._again_at = time.monotonic() + AGAIN
        busy: ServerBusy | None = None
        self._free_ended()
        for held in list(self._held):
            if time.monotonic() >= self._due(held):
                try:
                    self._renew(held)
                except ServerRefused as error:
                    self._postpone(held)
                    self._refuse(held.name, held.lease, error)
                except ServerBusy as error:
                    self._postpone(held)
                    busy = error
        self._again_at = 0.0
        if busy is not None:
            raise busy

    def postpone(self) -> None:
        """The server is unreachable: `due_in` waits for a while."""
        self._again_at = time.monotonic() + AGAIN

    @property
    def due_in(self) -> float:
        """Seconds until `renew` must be called; inf if nothing is held."""
        due = 0.0 if self._ended else min(map(self._due, self._held), default=math.inf)
        return max(0.0, max(due, self._again_at) - time.monotonic())

    def _due(self, held: HeldOverlap) -> float:
        return max(held.again_at, 0.0 if held.pid else held.renewed + self.seconds / 3)

    def _postpone(self, held: HeldOverlap) -> None:
        held.again_at = time.monotonic() + self.seconds / 3

    def _refuse(self, name: str, lease: Lease, error: ServerRefused) -> str:
        why = f"its lease {lease.key} is refused by the server: {error}"
        if name not in self._reported:
            self._reported.add(name)
            self._refused(name, why)
        return why

    def _renew(self, held: HeldOverlap) -> None:
        at, next_one = time.monotonic(), self._named(held)
        if held.lease.pass_to(self.store, next_one.owner) is not None:
            held.lease, held.renewed, held.pid = next_one, at, 0
            self._reported.discard(held.name)
            return
        cleared = at < held.renewed + self.seconds
        taken = "it was cleared by an operator" if cleared else held.lease.take(self.store)
        if taken is None:  # it expired while the server was unreachable
            held.renewed = at
            self._lost(held.name, "it expired, and was taken again")
            return
        self._held.remove(held)
        self._lost(held.name, taken if cleared else f"it expired, and {holder_text(taken)} runs it too")

    def _named(self, held: HeldOverlap) -> Lease:
        if held.pid:
            held.note["pid"] = held.pid
        return Lease(held.lease.key, json.dumps(held.note), self.seconds)

    def _free_ended(self) -> None:
        while self._ended:
            with suppress(ServerRefused):  # the key holds something else by now
                self._ended[-1].free(self.store)
            self._ended.pop()


def key_of(entry: Entry, host: str) -> str:
    """One key for all hosts; one per host for an on_every_host() entry."""
    return keys.overlap(keys.of_host(host, entry.name) if entry.every_host else entry.name)


def holder_text(note: str) -> str:
    """The holder of a lease: "web1 (pid 412) since 12:00:01"."""
    try:
        found = json.loads(note)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found["at"])))
        return f"{found['host']} (pid {found['pid']}) since {clock}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return "another host"
