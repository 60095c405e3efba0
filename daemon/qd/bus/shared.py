"""What the connections `sync` of all threads of an app share: locks of unique jobs, batches and results, in memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from qd.bus.local import MemoryBatches
from qd.connectors.base import Kept

if TYPE_CHECKING:
    from qd.bus.services import Services
    from qd.connectors.effects import Keep

MOST = 1000  # results, and batches that are over


class Shared:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.batches = MemoryBatches()
        self.results = dict[str, Kept]()
        self._owners = dict[str, str]()
        self._lock = threading.Lock()

    def held(self, name: str, owner: str) -> str | None:
        """Take the lock `name`. Returns who has it already."""
        with self._lock:
            found = self._owners.setdefault(name, owner)
            return None if found == owner else found

    def free(self, name: str, owner: str) -> bool:
        with self._lock:
            found = self._owners.get(name) == owner
            if found:
                del self._owners[name]
            return found

    def keep(self, kept: Keep) -> None:
        self.results[kept.id] = Kept(kept.status, kept.value, None, time.time())
        while len(self.results) > MOST:
            self.results.pop(next(iter(self.results)))

    def forget_batches(self) -> None:
        over = [id for id, kept in self.batches.kept.items() if kept.finished_at is not None][: -MOST or None]
        for id in over:
            self.batches.kept.pop(id, None)
