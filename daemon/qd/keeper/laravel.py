"""Laravel's own keys for restart, pause and, where [laravel] wants it, maintenance, obeyed when it names their cache.

The restart key is a foreign clock's whole second: any change since the first look means restart. A queue that Laravel 13
has paused is mirrored into qd's own pause for a few seconds, again and again, so that the reserve script sees it. The
cache may be another server than the queue's: that it is away harms nothing.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from qd.connectors.keeping import Keeping
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Keyspace
from qd.connectors.redis.opening import opened
from qd.errors import ConnectionLost, QdError, ServerRefused
from qd.log import Log
from qd.store.laravel import DOWN, truthy

if TYPE_CHECKING:
    from qd.config import Settings

RESTART = "illuminate:queue:restart"
ALL_PAUSED = "illuminate:queues:paused"
PAUSED = "illuminate:queue:paused:{connection}:{queue}"
MIRROR = 4000  # ms a mirrored pause lives; refreshed each second
AGAIN = 10.0  # seconds until a cache that was away is tried again: the beat must not wait for it each time
UNSEEN = object()


class LaravelKeys:
    def __init__(self, wire: Keyspace, prefix: str, settings: Settings, queue: Keeping, log: Log) -> None:
        self.wire, self.queue, self.queues, self.log = wire, queue, settings.work.queues, log
        connection = settings.work.connection
        names = [RESTART, DOWN, ALL_PAUSED, *(PAUSED.format(connection=connection, queue=q) for q in self.queues)]
        self._names = [prefix + name for name in names]
        self.restart: object = UNSEEN  # the restart key at the last look: bytes, None: it is not there
        self._obeys_down = settings.laravel is not None and settings.laravel.down
        self.down = ""  # the key while it says so; what it said last while the cache is away
        self._unseen = "Laravel's restart and pause keys" + (", and its maintenance mode" if self._obeys_down else "")
        self._away_until: float | None = None

    @classmethod
    def of(cls, settings: Settings, queue: Keeping, log: Log) -> LaravelKeys | None:
        laravel = settings.laravel
        if laravel is None or not laravel.cache_url:
            return None
        wire = opened(laravel.cache_url, name="qd:laravel", patience=1.0)
        return cls(wire, laravel.cache_prefix, settings, queue, log)

    def restart_changed(self) -> bool:
        """Look once at all keys; mirror the pauses. True: the restart key is not what it was at the last look."""
        if self._away_until is not None and time.monotonic() < self._away_until:
            return False
        try:
            stamp, down, all_paused, *paused = self.wire.call("MGET", *self._names)
        except (ConnectionLost, ServerRefused) as error:
            return self._lost(error)
        self._back()
        self.down = DOWN if self._obeys_down and truthy(down) else ""
        for queue, value in zip(self.queues, paused, strict=True):
            if truthy(value) or truthy(all_paused):
                self._mirror(queue)
        changed = self.restart is not UNSEEN and stamp != self.restart
        self.restart = stamp
        return changed

    def _lost(self, error: QdError) -> bool:
        if self._away_until is None:
            self.log.warning("laravel.away", error=str(error), unseen=self._unseen)
        self._away_until = time.monotonic() + AGAIN
        return False

    def _back(self) -> None:
        if self._away_until is not None:
            self._away_until = None
            self.log.info("laravel.back")

    def _mirror(self, queue: str) -> None:
        """qd's own pause, unless somebody has paused it with qd: his word and reason stay."""
        space, prefix = self.queue.kept
        name = prefix + keys.paused(queue)
        note = json.dumps({"by": "Laravel", "reason": "queue:pause", "at": None, "until": None})
        fresh = space.call("SET", name, note, "NX", "PX", MIRROR)
        if not fresh and b'"by": "Laravel"' in (space.call("GET", name) or b""):
            space.call("PEXPIRE", name, MIRROR)
