"""What a keeper asks of its connection: leases renewed and reclaimed, what is due moved, the jobs of the dead given back.

One object is both: `base.Connector` for producers and workers, this for the keeper of their master.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from qd.connectors.base import Connector, Released
from qd.connectors.effects import Effect
from qd.errors import ConnectionLost, ServerRefused


class Asked(NamedTuple):
    """token: of the master. report: JSON, "" for none. lease: seconds. reclaims_until: the last moment of the server's clock
    at which it may reclaim, 0: not at all. slots: those that are alive."""

    token: str
    report: str
    lease: float
    renew: bool
    reclaims_until: float
    slots: Sequence[int]


class Given(NamedTuple):
    """An answer of a worker that waited for its server, and is given now. there: its lease was not lost meanwhile."""

    queue: str
    member: bytes
    there: bool


class Answer(NamedTuple):
    """now: unix seconds of the server. restart, down: what stands there, "" for nothing. due: ms until the next delayed job,
    -1: there is none. more: jobs are still due. waiting: places of queues that wait for somebody, 0 is the first.
    cancelled, lost: slot and turn, of jobs that are to end and of leases that are gone. away: servers that have some of the
    queues and did not answer, or queues that a server refuses, each with what is wrong, where others did.
    broke: what else was to be done met a server that is away. given: answers that workers had left."""

    now: float
    restart: str
    down: str
    due: int
    more: bool
    reclaimed: int
    waiting: list[int]
    cancelled: list[tuple[int, int]]
    lost: list[tuple[int, int]]
    away: tuple[tuple[str, str], ...] = ()
    broke: ConnectionLost | ServerRefused | None = None
    given: tuple[Given, ...] = ()


class Forgotten(NamedTuple):
    """aged: records that were deleted for their age. dropped: the queue's counter of records that were deleted to make room
    for newer ones; it starts again at 0 once the last of them was longer ago than records are kept."""

    aged: int
    dropped: int


class Keeping(Connector, Protocol):
    """Every call may raise ConnectionLost, ServerBusy or ServerRefused."""

    def beat(self, queues: Sequence[str], asked: Asked) -> Answer:
        """Everything periodic: renew the leases of the slots, reclaim what ran out, move what is due, wake who waits.
        restart, down and the report count where this is the control connection, too."""

    def owners(self, queue: str) -> list[str]:
        """Who holds a job of this queue, "<token>/<slot>" each."""

    def owned(self, queue: str, owner: str) -> bytes | None:
        """The payload that `owner` holds, with its mark."""

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Release, of a job that `owner`, now dead, held. False: it does not hold it as `member` any more."""

    def note_death(self, queue: str, mark: str, note: bytes) -> None:
        """Kept for the next reserve of the job, a day at most."""

    def forget_aged(self, queue: str, seconds: float, most: int) -> Forgotten:
        """Delete at most so many records of jobs that failed longer ago."""

    def missing_rights(self, queue: str) -> set[str]:
        """What this user of the server may not do and a worker needs, tried beside the keys of this queue."""

    def user(self) -> str:
        """Who that is, for people."""
