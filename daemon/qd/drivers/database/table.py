"""JobTable: transactions on the table of jobs, and on the keyspace in the same database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import sqlalchemy as sql

from qd.drivers.database.connection import again, channel
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.database.sql import statements
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.keyspace.queue import Bounds
from qd.drivers.keyspace.sending import effect_args
from qd.drivers.types import Effect
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


T = TypeVar("T")


class ReservedRow(NamedTuple):
    """A reserved job. text_sum: of the text of its last checkpoint, or None. queue, payload: of a job that a turn has just
    reserved."""

    id: int
    attempts: int
    reserved_at: int
    text_sum: int | None = None
    queue: str = ""
    payload: bytes = b""


class JobTable:
    """The table, and the keyspace in the same database, over one connection. owner: of reservations here. longest: bytes of
    a payload that a worker accepts, 0 for no bound."""

    def __init__(
        self, settings: ConnectionSettings, space: DatabaseKeyspace, owner: str, keep: Bounds, longest: int
    ) -> None:
        self.settings, self.space, self.connection = settings, space, space.connection
        self.owner, self.keep, self.longest = owner, keep, longest
        self.sql = statements(self.connection.kind, self.connection.server.clock, settings.table)

    def names(self, *names: str) -> list[str]:
        """The names of these keys in the keyspace."""
        return [self.settings.prefix + name for name in names]

    def atomic(self, act: Callable[[], T], *, explicit: bool = False) -> T:
        """Run all that `act` executes as one transaction, or as part of the current one. explicit: see
        DatabaseConnection.transaction."""
        return self._again(partial(self.connection.transaction, explicit=explicit), act)

    def _again(self, around: Callable[[], AbstractContextManager[None]], act: Callable[[], T]) -> T:
        def attempt() -> T:
            with shield, around():
                return act()

        return again(self.connection, attempt)

    def rows(self, statement: sql.TextClause, values: dict[str, Any]) -> Any:
        """Execute one statement, in a transaction of its own if there is none. Returns its rows, if it has any."""

        def execute() -> Any:
            result = self.connection.execute(statement, values)
            return result.all() if result.returns_rows else ()

        return self._again(nullcontext, execute)

    def now_us(self) -> int:
        """The clock of the database, in microseconds."""
        return int(self.connection.execute(self.sql["now"]).scalar_one())

    def notify(self, queues: set[str]) -> None:
        """Wake the workers that wait for these queues, when the transaction commits."""
        if self.sql.listens:
            for queue in sorted(queues):
                self.connection.execute(self.sql["notify"], {"channel": channel(self.settings.table, queue)}).close()

    def keep_failed(self, queue: str, id: str, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> None:
        """Write a record into the failed store, inside the transaction that deletes the job."""
        more, options = effect_args(effects, self.settings.prefix)
        names = self.names(keys.failed(queue), keys.failed_at(queue), *more)
        script("buried").call(self.space, names, id, record, raw, *self.keep.args, *options)

    def run_effects(self, effects: Sequence[Effect]) -> None:
        """Run the effects of an answer, inside its transaction."""
        if effects:
            more, options = effect_args(effects, self.settings.prefix)
            script("ended").call(self.space, self.names(*more), *options)
