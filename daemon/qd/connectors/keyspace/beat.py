"""The keeper's script call (beat.lua), on any keyspace. Without queues it reads and writes the control connection's part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd.connectors.keeping import Answer, Asked
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Keyspace, script

KINDS = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused)
GLOBAL = (keys.RESTART, keys.DOWN, keys.MASTERS, keys.CANCEL)
MOVE = 500  # due jobs a beat moves for each queue; a beat with more to do comes again soon
DIGITS = 40  # of a number that is read: a job's arguments may hold longer ones


def beat(space: Keyspace, prefix: str, queues: Sequence[str], asked: Asked) -> Answer:
    """Raises ConnectionLost, ServerRefused."""
    names = [*GLOBAL, *(kind(queue) for queue in queues for kind in KINDS)]
    slots = asked.slots
    args: tuple[Arg, ...] = (*asked[:3], int(asked.renew), asked.reclaims_until, MOVE, len(slots), *slots)
    return read(script("beat").call(space, [prefix + name for name in names], *args))


def read(reply: list[Any]) -> Answer:
    stamp, restart, down, due, more, reclaimed, waiting, cancelled = (
        x if isinstance(x, int) else text_of(x) for x in reply[:8]
    )
    return Answer(
        float(stamp),
        str(restart),
        str(down),
        int(due),
        bool(int(more)),
        int(reclaimed),
        [int(place) - 1 for place in str(waiting).split()],
        [turn_of(item) for item in str(cancelled).split()],
        [turn_of(item.decode()) for item in reply[8:]],
    )


def turn_of(item: str) -> tuple[int, int]:
    slot, turn = item.split(":")
    return int(slot[:DIGITS]), int(turn[:DIGITS])


def text_of(value: bytes) -> str:
    """What stands in Redis may be anybody's: never a reason to fall."""
    return value.decode("utf-8", "replace")
