"""The keeper's script call (beat.lua): what it is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.connectors.redis import keys
from qd.connectors.redis.scripts import script
from qd.connectors.redis.wire import Arg, Wire

KINDS = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused)
GLOBAL = (keys.RESTART, keys.DOWN, keys.MASTERS, keys.CANCEL)
MOVE = 500  # due jobs a beat moves for each queue; a beat with more to do comes again soon
DIGITS = 40  # of a number that is read: a job's arguments may hold longer ones


class Asked(NamedTuple):
    """token: of the master. report: JSON, "" for none. lease: seconds. reclaims_until: the last moment of the server's clock
    at which it may reclaim, 0: not at all. slots: those that are alive."""

    token: str
    report: str
    lease: float
    renew: bool
    reclaims_until: float
    slots: Sequence[int]


class Answer(NamedTuple):
    """now: unix seconds of the server. restart, down: what stands there, "" for nothing. due: ms until the next delayed job,
    -1: there is none. more: jobs are still due. waiting: places of queues that wait for somebody, 0 is the first.
    cancelled, lost: slot and turn, of jobs that are to end and of leases that are gone."""

    now: float
    restart: str
    down: str
    due: int
    more: bool
    reclaimed: int
    waiting: list[int]
    cancelled: list[tuple[int, int]]
    lost: list[tuple[int, int]]


def beat(wire: Wire, prefix: str, queues: Sequence[str], asked: Asked) -> Answer:
    """Raises ConnectionLost, ServerRefused."""
    names = [*GLOBAL, *(kind(queue) for queue in queues for kind in KINDS)]
    slots = asked.slots
    args: tuple[Arg, ...] = (*asked[:3], int(asked.renew), asked.reclaims_until, MOVE, len(slots), *slots)
    return read(script("beat").call(wire, [prefix + name for name in names], *args))


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
