"""Laravel's own restart and pause keys, obeyed when [laravel] names their cache.

The restart key is a foreign clock's whole second: any change since the first look means restart. A queue that Laravel 13
has paused is mirrored into qd's own pause for a few seconds, again and again, so that the reserve script sees it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from qd.connectors.redis import keys
from qd.connectors.redis.queue import RedisQueue
from qd.connectors.redis.wire import Wire

if TYPE_CHECKING:
    from qd.config import Settings

RESTART = "illuminate:queue:restart"
ALL_PAUSED = "illuminate:queues:paused"
PAUSED = "illuminate:queue:paused:{connection}:{queue}"
MIRROR = 4000  # ms a mirrored pause lives; refreshed each second
UNSEEN = object()


class LaravelKeys:
    def __init__(self, wire: Wire, prefix: str, settings: Settings, queue: RedisQueue) -> None:
        self.wire, self.queue, self.queues = wire, queue, settings.work.queues
        connection = settings.work.connection
        names = [RESTART, ALL_PAUSED, *(PAUSED.format(connection=connection, queue=q) for q in self.queues)]
        self._names = [prefix + name for name in names]
        self._first: object = UNSEEN

    @classmethod
    def of(cls, settings: Settings, queue: RedisQueue) -> LaravelKeys | None:
        laravel = settings.laravel
        if laravel is None:
            return None
        wire = Wire(laravel.cache_url, name="qd:laravel", connect_timeout=1.0, timeout=1.0)
        return cls(wire, laravel.cache_prefix, settings, queue)

    def restart_asked(self) -> bool:
        """Look once at all keys; mirror the pauses. True: the restart key is not what it was at the first look."""
        stamp, all_paused, *paused = self.wire.call("MGET", *self._names)
        for queue, value in zip(self.queues, paused, strict=True):
            if truthy(value) or truthy(all_paused):
                self._mirror(queue)
        if self._first is UNSEEN:
            self._first = stamp
        asked: bool = stamp != self._first
        self._first = stamp
        return asked

    def _mirror(self, queue: str) -> None:
        """qd's own pause, unless somebody has paused it with qd: his word and reason stay."""
        name = self.queue.settings.prefix + keys.paused(queue)
        note = json.dumps({"by": "Laravel", "reason": "queue:pause", "at": None, "until": None})
        fresh = self.queue.wire.call("SET", name, note, "NX", "PX", MIRROR)
        if not fresh and b'"by": "Laravel"' in (self.queue.wire.call("GET", name) or b""):
            self.queue.wire.call("PEXPIRE", name, MIRROR)


def truthy(value: bytes | None) -> bool:
    return value is not None and value not in (b"b:0;", b"0", b"")
