"""Beats of a keeper: make one by hand, or wait for those of a running master."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, script
from qd.drivers.redis.queue import RedisQueue
from qd.errors import ServerRefused
from tests.support.redis import Client
from tests.support.waiting import eventually


class Beat(NamedTuple):
    now: float
    restart: str
    down: str
    due_ms: int
    more: bool
    reclaimed: int
    waiting: list[str]
    cancelled: list[str]
    lost: list[str]


def beat(
    queue: RedisQueue,
    *queues: str,
    slots: Sequence[int] = (),
    report: str = "",
    renew: bool = True,
    reclaim: bool = True,
    move: int = 500,
    tokens: int = 64,
    lease: float = 30.0,
) -> Beat:
    """slots: the live workers of the master that `queue` belongs to. Raises ServerRefused for a key of another type."""
    kinds = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused)
    names = [keys.RESTART, keys.DOWN, keys.MASTERS, keys.CANCEL, *(kind(name) for name in queues for kind in kinds)]
    token = queue.owner.partition("/")[0]
    args: tuple[Arg, ...] = (token, report, lease, int(renew), 1e12 if reclaim else 0, move, tokens, *slots)
    reply = script("beat").call(queue.connection, [queue.settings.prefix + name for name in names], *args)
    stamp, restart, down, due, more, reclaimed, waiting, cancelled, *lost = reply
    waits = [queues[int(place) - 1] for place in waiting.split()]
    if lost and isinstance(lost[-1], list):
        raise ServerRefused(lost[-1][1].decode())
    ids = [item.decode() for item in lost]
    return Beat(
        float(stamp),
        restart.decode(),
        down.decode(),
        due,
        bool(more),
        reclaimed,
        waits,
        cancelled.decode().split(),
        ids,
    )


def wait_for_beat(redis: Client) -> None:
    """Wait until the only master has reported again, which means that its keeper has made a beat."""
    wait_for_reports(redis, 0.8)


def wait_for_reports(redis: Client, seconds: float) -> None:
    """Wait until the only master has reported for this many more seconds, by the clock of Redis."""

    def seen_at() -> float:
        return max((float(json.loads(text)["seen_at"]) for text in redis.hash("qd:masters").values()), default=0.0)

    begun = eventually(seen_at, what="a report")
    eventually(lambda: seen_at() >= begun + seconds, seconds + 20, what=f"reports of {seconds} s")
