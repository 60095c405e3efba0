"""Names to strings, hashes, lists, sets and sorted sets, with an expiry each, and steps (connectors/scripts) that read and
change several of them as one: all or nothing, seen by nobody half-way.

A Redis or Valkey server is one (redis/wire.py), the tables of a database are another (database/keyspace.py). Commands and
replies are those of Redis, whatever stands behind. What qd keeps beside the queues stands here: records of failed jobs,
locks, batches, stamps, reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from qd.connectors.scripts import Script

Arg = bytes | str | int | float
Replies = Callable[[], list[Any]]


class Call(NamedTuple):
    """One step. places: which of the caller's things it is for; a good reply has one answer each, or their number."""

    script: Script
    names: Sequence[str]
    args: Sequence[Arg]
    places: Sequence[int] = ()


class Keyspace(Protocol):
    """Belongs to one thread of one process, and connects on first use.

    Every call may raise ConnectionLost (nobody knows whether it was done), ServerBusy, WrongPassword or ServerRefused (it
    was not). timeout: seconds until a reply, connect_timeout: until there is a connection; both are finite.
    """

    timeout: float
    connect_timeout: float
    about: Callable[[float], None] | None  # told that the caller lives, and what the next step may take

    @property
    def place(self) -> str:
        """Where it is, for people: without a password."""

    @property
    def stranger(self) -> str:
        """What to say when it answers as no keyspace does."""

    def call(self, *args: Arg) -> Any:
        """One command, one reply: bytes, int, None or a list of them."""

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """In one round trip, not as one step. Refusals stand in the list as exceptions."""

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        """One step on these names."""

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        """In one round trip, each by itself. Refusals stand in the list as exceptions."""

    def begin_many(self, calls: Sequence[Call]) -> Replies:
        """As run_many, whose replies are had by calling what is returned. Where the server can do them meanwhile, nothing
        waits for them before; other calls may come in between."""

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """Take the first item of the list `name`, waited for as long as `seconds`. False: none came, or the file
        descriptor `wake` was readable. Whatever ends it from outside leaves a keyspace that can be used."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Calls inside wait no longer than that."""

    def close(self) -> None:
        """The next call connects anew."""
