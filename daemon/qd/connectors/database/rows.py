"""What stands between the keyspace of a database and its table of jobs: names of queues are no names of its own.

`queues:Q`, `queues:Q:delayed`, `queues:Q:reserved` and `queues:Q:notify` are rows of the jobs table. A command on such a
name, from a step (keyspace/scripts) or alone, becomes calls of a Rows inside the transaction that runs (queued.py), so
that a step and the change of a row happen both or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from sqlalchemy import CursorResult, Executable

Spot = Literal["ready", "delayed", "reserved"]


class Placed(NamedTuple):
    """What stands in a row. score: unix seconds at which it is due, or its lease runs out; 0 of a ready one."""

    payload: bytes
    score: float


class Running(Protocol):
    """The transaction of a step, or a single command outside of one."""

    @property
    def now(self) -> float:
        """Unix seconds by the database's clock, the same for a whole step."""

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        """values: a mapping, or a list of them for many. Raises ConnectionLost, ServerBusy or ServerRefused."""


class Rows(Protocol):
    """The jobs of one table. Nobody has locked anything for these calls: who needs a row locked does it (a step that asks
    for the score of a reserved payload takes it away next, or adds beside it)."""

    def queues(self, run: Running) -> list[str]:
        """Those that have a row."""

    def add(self, run: Running, queue: str, payloads: Sequence[bytes], due_at: float | None, *, head: bool) -> None:
        """due_at: None for ready ones, at the tail, or put one by one at the head. The order is that of `payloads`."""

    def count(self, run: Running, queue: str, spot: Spot) -> int: ...

    def page(self, run: Running, queue: str, spot: Spot, first: int, most: int, *, tail: bool) -> list[Placed]:
        """At most so many from place `first` (0: the next in line, or the first due), in order. tail: counted from the
        other end, and in that order."""

    def until(self, run: Running, queue: str, spot: Spot, moment: float, most: int) -> list[Placed]:
        """At most so many whose score is not over `moment`, by score."""

    def score(self, run: Running, queue: str, spot: Spot, payload: bytes) -> float | None:
        """None: it does not stand there."""

    def lease(self, run: Running, queue: str, payload: bytes, until: float) -> bool:
        """Set the end of the lease of a reserved payload. False: it is not reserved; nothing is done then."""

    def remove(self, run: Running, queue: str, spot: Spot, payload: bytes, *, tail: bool) -> bool:
        """Take one row of exactly these bytes away, the first or (tail) the last of equal ones. False: none is there."""

    def cut(self, run: Running, queue: str, spot: Spot, count: int, *, tail: bool) -> None:
        """Take so many away from the front or (tail) from the end."""

    def wake(self, run: Running, queue: str) -> None:
        """Tell those who wait for this queue, once the transaction is committed (a NOTIFY where there is one)."""
