"""How the manager opens queues and keyspaces on Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.keyspace.queue import Bounds
from qd.connectors.redis.queue import RedisQueue
from qd.connectors.redis.wire import Wire

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.manager import Reserver


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> RedisQueue:
    kept = settings.failed
    queue = RedisQueue(
        at,
        token=who.token,
        slot=who.slot,
        turns=who.turns,
        name=who.title,
        keep=Bounds(kept.max_count if kept.enabled else 0, kept.keep, kept.max_bytes),
        max_payload=settings.max_payload,
    )
    queue.patience(who.patience, who.patience)
    return queue


def open_space(at: ConnectionSettings, title: str, patience: float) -> Wire:
    return Wire(at.url or "", name=title, connect_timeout=patience, timeout=patience)
