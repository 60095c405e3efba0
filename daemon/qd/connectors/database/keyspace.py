"""The keyspace on the tables of a database: see connectors/keyspace/base.py for what it promises.

    a reading command    one or two statements, in no transaction
    anything else        one transaction: lock the names, read them and the clock, do it, write the names, COMMIT

Steps and commands that touch the same names come one after the other. One that meets another in a deadlock is rolled back
and done again: nothing of it had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sql

from qd.connectors.database import commands, tables
from qd.connectors.database.link import Link, again
from qd.connectors.database.listening import popped
from qd.connectors.database.lua import runner
from qd.connectors.database.rows import Rows
from qd.connectors.database.step import Step
from qd.connectors.database.words import word
from qd.connectors.keyspace.base import Arg, Call, Replies, Script
from qd.errors import ConnectionLost, ServerRefused
from qd.process.shield import shield

T = TypeVar("T")
TOGETHER = 1000  # names that one transaction locks, as far as one step does not name more
TIDY = 5.0  # seconds between two sweeps of a keeper
SWEPT = 1000  # items that a sweep takes away, as far as one name has not more


class DatabaseSpace:
    """Over a Link of its own, or one that its queue uses, too: a call inside of `link.transaction()` is part of that."""

    def __init__(self, link: Link, rows: Rows | None = None, prefix: str = "") -> None:
        self.link, self.rows, self.prefix = link, rows, prefix.encode()
        self._tidied = 0.0

    # -- the connection

    @property
    def place(self) -> str:
        return self.link.place

    @property
    def stranger(self) -> str:
        return f"the tables of qd at {self.link.place} hold what qd has not written: does another program use them?"

    def patience(self, connect: float, answer: float) -> None:
        self.link.patience(connect, answer)

    def on_progress(self, call: Callable[[float], None]) -> None:
        self.link.on_progress(call)

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self.link.within(seconds)

    def close(self) -> None:
        self.link.close()

    # -- calls

    def call(self, *args: Arg) -> Any:
        words = [word(arg) for arg in args]
        command = commands.command_of(words)
        return self._done(commands.names_of(command, words), lambda step: commands.run(step, words), command.writes)

    def call_many(self, given: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """As in base.Keyspace. MULTI and EXEC are known: what stands between them is one step in any case."""
        lines = [[word(arg) for arg in args] for args in given]
        known = [found for words in lines if (found := commands.known(words)) is not None]
        names = [name for words in lines for name in commands.names_in(words)]
        return self._done(names, lambda step: commands.run_many(step, lines), any(each.writes for each in known))

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        (reply,) = self.run_many([Call(script, names, args)])
        if isinstance(reply, Exception):
            raise reply
        if script.name == "beat":  # of a keeper whose control connection this is: about once a second
            self._tidy()
        return reply

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        replies = list[Any]()
        for some in parts(calls):
            names = [word(name) for call in some for name in call.names]
            try:
                replies += self._done(names, partial(self._each, some))
            except ServerRefused as error:
                if len(some) > 1:
                    raise
                replies.append(error)
        return replies

    def begin_many(self, calls: Sequence[Call]) -> Replies:
        replies = self.run_many(calls)
        return lambda: replies

    def _each(self, calls: Sequence[Call], step: Step) -> list[Any]:
        """One alone is undone with its transaction, where that is no part of another."""
        if len(calls) == 1 and self.link.depth == 1:
            return [run_step(step, calls[0])]
        return [self._apart(step, call) for call in calls]

    def _apart(self, step: Step, call: Call) -> Any:
        self.link.say("SAVEPOINT qd_step")
        try:
            reply = run_step(step, call)
        except ServerRefused as error:
            self.link.say("ROLLBACK TO SAVEPOINT qd_step")
            step.forget()
            return error
        self.link.say("RELEASE SAVEPOINT qd_step")
        return reply

    def _done(self, names: Sequence[bytes], act: Callable[[Step], T], writes: bool = True) -> T:
        """What `act` answers in a step on these names, again when it has met another in a deadlock."""

        def attempt() -> T:
            step = Step(self.link, self.rows, self.prefix, locks=writes)
            with shield, self.link.transaction() if writes else nullcontext():
                step.open(commands.own_names(step, names))
                answer = act(step)
                step.flush()
            return answer

        return again(self.link, attempt)

    # -- waiting

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        return popped(self.link, self._take, name.encode(), seconds, wake)

    def _take(self, name: bytes) -> bool:
        return bool(self.call("LLEN", name)) and self.call("LPOP", name) is not None

    # -- what has expired

    def _tidy(self) -> None:
        """Now and then. What it meets, the next call meets, too."""
        if time.monotonic() - self._tidied > TIDY:
            with suppress(ConnectionLost):
                self._tidied = 0.0 if self.sweep() else time.monotonic()

    def sweep(self) -> int:
        """Take away some of what has expired. Returns how many names they were; call again while there are any."""
        columns = tables.names.c
        clock: sql.ColumnElement[int] = sql.literal_column(self.link.server.clock)
        asked = sql.select(columns.name, columns.whole, columns.size).where(columns.expires_at <= clock).limit(100)
        found, size = list[bytes](), 0
        for row in self.link.execute(asked.order_by(columns.expires_at)):
            found.append(bytes(row.whole or row.name))
            size += row.size
            if size > SWEPT:
                break
        if found:
            self._done(found, lambda step: step.sweep(found))
        return len(found)


def run_step(step: Step, call: Call) -> Any:
    """A step and all that it writes. Raises ServerRefused."""
    reply = runner().run(step, call.script, call.names, call.args)
    step.flush()
    return reply


def parts(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """As many at once as do not lock too many names together."""
    part, names = list[Call](), 0
    for call in calls:
        if part and names + len(call.names) > TOGETHER:
            yield part
            part, names = [], 0
        part.append(call)
        names += len(call.names)
    if part:
        yield part
