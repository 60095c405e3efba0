"""The jobs that were sent in a fake, as a server would have them: found by id, moved and cancelled by key, with what is kept
of them. A job that was cancelled is not there any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from qd.bus.parcel import Parcel
from qd.connectors.base import Found, Kept, Spot
from qd.connectors.effects import Effect, Keep
from qd.payload import read


class Waiting:
    """The parts of a connection that ask for single jobs (base.Jobs, and a Connector's keyed ones). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._parcels: list[Parcel] = []
        self._sent_at: dict[str, float] = {}  # by id
        self._begun: set[str] = set()  # ids of those that run, or have run
        self._kept: dict[str, Kept] = {}

    def all(self) -> list[Parcel]:
        """In the order in which they were sent."""
        with self._lock:
            return self._parcels.copy()

    def clear(self) -> None:
        with self._lock:
            self._parcels.clear()

    def add(self, parcels: Sequence[Parcel]) -> None:
        """A job under a key takes the place of the one that waits under it."""
        with self._lock:
            for parcel in parcels:
                if name := key_name(parcel):
                    self.cancel_keyed(parcel.queue, name)
                self._parcels.append(parcel)
                self._sent_at[parcel.id] = time.time()

    def begin(self, parcel: Parcel) -> None:
        """It runs, and waits no more."""
        self._begun.add(parcel.id)

    def keep(self, end: Keep) -> None:
        """Keep how a job has ended, with the progress it reported."""
        before = self._kept.get(end.id)
        self._kept[end.id] = Kept(end.status, end.value, before and before.progress, time.time())

    # -- by key

    def cancel_keyed(self, queue: str, name: str) -> bool:
        return self._change(self._under(queue, name), None)

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        found = self._under(queue, name)
        if found is None or found.plan is None:
            return False
        self._sent_at[found.id] = time.time()
        return self._change(found, replace(found, delay=delay, plan=found.plan.using({"delay": delay})))

    def keyed_due(self, queue: str, name: str) -> float | None:
        found = self._under(queue, name)
        return None if found is None else self._sent_at[found.id] + found.delay

    # -- by id

    def find(
        self, queue: str, id: str, spots: Sequence[Spot] = ("delayed", "ready", "running", "failed")
    ) -> Found | None:
        found = self._first(lambda each: each.queue == queue and id in (each.id, each.uuid))
        spot: Spot = "delayed" if found is not None and found.delay else "ready"
        if found is None or spot not in spots:
            return None
        return Found(queue, spot, found.body, read(found.body), None)

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        for effect in effects:
            if isinstance(effect, Keep):
                self._kept[effect.id] = Kept(effect.status, effect.value, None, time.time())
        return self._change(self._first(lambda each: each.body == found.text), None)

    def stop(self, found: Found) -> bool:
        return False

    def kept(self, id: str) -> Kept | None:
        return self._kept.get(id)

    def progress(self, id: str, percent: float, ttl: float) -> None:
        self._kept[id] = Kept(None, b"", percent, None)

    def _under(self, queue: str, name: str) -> Parcel | None:
        return self._first(lambda each: each.queue == queue and key_name(each) == name)

    def _first(self, fits: Callable[[Parcel], bool]) -> Parcel | None:
        """Of those that wait."""
        with self._lock:
            return next((each for each in self._parcels if each.id not in self._begun and fits(each)), None)

    def _change(self, parcel: Parcel | None, new: Parcel | None) -> bool:
        """new: what takes its place, None: nothing does. False: it is not there any more."""
        with self._lock:
            if parcel not in self._parcels or parcel is None:
                return False
            at = self._parcels.index(parcel)
            self._parcels[at : at + 1] = [] if new is None else [new]
            return True


def key_name(parcel: Parcel) -> str:
    """The name that it waits under; "": it has no key."""
    return ((parcel.ties and parcel.ties.key) or "").rpartition(" ")[2]
