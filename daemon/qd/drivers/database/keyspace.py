"""The keyspace on the tables of a database: see drivers/keyspace/base.py for what it promises.

    a reading command    one or two statements, in no transaction
    anything else        one transaction: lock the names, read them and the clock, do it, write the names, COMMIT

Steps and commands that touch the same names come one after the other. One that meets another in a deadlock is rolled back
and done again: nothing of it had happened.

Steps (keyspace/scripts) run beside the database, by the same Lua 5.1 that a Redis server has, over one transaction.

What a script may do and what becomes of its values are Redis's: nil is false, a number in a reply is cut to an integer, a
table is a list up to its first hole, {ok=} a status, {err=} an error. One runtime a thread; each script is compiled once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sql
from lupa import lua51

from qd.drivers.database import commands, schema
from qd.drivers.database.connection import DatabaseConnection, again, popped
from qd.drivers.database.items import StatusReply, word
from qd.drivers.database.transaction import Rows, Step
from qd.drivers.keyspace.base import Arg, Replies, Script, ScriptCall
from qd.errors import ConnectionLost, ServerRefused
from qd.process.shield import shield

T = TypeVar("T")
TOGETHER = 1000  # names that one transaction locks, as far as one step does not name more
TIDY = 5.0  # seconds between two sweeps of a keeper
SWEPT = 1000  # items that a sweep takes away, as far as one name has not more


class DatabaseSpace:
    """Over a Link of its own, or one that its queue uses, too: a call inside of `link.transaction()` is part of that."""

    def __init__(self, link: DatabaseConnection, rows: Rows | None = None, prefix: str = "") -> None:
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
        (reply,) = self.run_many([ScriptCall(script, names, args)])
        if isinstance(reply, Exception):
            raise reply
        if script.name == "beat":  # of a keeper whose control connection this is: about once a second
            self._tidy()
        return reply

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
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

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        replies = self.run_many(calls)
        return lambda: replies

    def _each(self, calls: Sequence[ScriptCall], step: Step) -> list[Any]:
        """One alone is undone with its transaction, where that is no part of another."""
        if len(calls) == 1 and self.link.depth == 1:
            return [run_step(step, calls[0])]
        return [self._apart(step, call) for call in calls]

    def _apart(self, step: Step, call: ScriptCall) -> Any:
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
        columns = schema.names.c
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


def run_step(step: Step, call: ScriptCall) -> Any:
    """A step and all that it writes. Raises ServerRefused."""
    reply = runner().run(step, call.script, call.names, call.args)
    step.flush()
    return reply


def parts(calls: Sequence[ScriptCall]) -> Iterator[list[ScriptCall]]:
    """As many at once as do not lock too many names together."""
    part, names = list[ScriptCall](), 0
    for call in calls:
        if part and names + len(call.names) > TOGETHER:
            yield part
            part, names = [], 0
        part.append(call)
        names += len(call.names)
    if part:
        yield part


# `answer` gives a reply, or nil and the words of a refusal. What has ended the whole step is raised again by every later
# call, so that no pcall of a script goes on after it.
BRIDGE = """
local answer = ...
local function call(...)
  local reply, refused = answer(...)
  if refused then error({err = refused}, 0) end
  return reply
end
local function pcall_(...)
  local reply, refused = answer(...)
  if refused then return {err = refused} end
  return reply
end
return {
  call = call, pcall = pcall_,
  error_reply = function(text) return {err = text} end,
  status_reply = function(text) return {ok = text} end,
}
"""
HEAD = "local redis, KEYS, ARGV = ... "  # on the first line: the numbers of lines stay
RUN = """
local chunk, redis, KEYS, ARGV = ...
local well, found = pcall(chunk, redis, KEYS, ARGV)
return well, found
"""


class Ended(BaseException):
    """The step cannot go on: what ended it is kept in the Runner."""


class ScriptRunner:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self.lua = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._chunks: dict[str, Any] = {}
        self._redis = self.lua.compile(BRIDGE)(self._answer)
        self._run = self.lua.compile(RUN)
        self._kind: Callable[[Any], Any] = lua51.lua_type
        self._step: Step | None = None
        self._why: BaseException | None = None

    def run(self, step: Step, script: Script, names: Sequence[Arg], args: Sequence[Arg]) -> Any:
        """Its reply. Raises ServerRefused when the script raises; an error that it returns is a ServerRefused as reply."""
        chunk = self._chunks.get(script.sha)
        if chunk is None:
            chunk = self._chunks[script.sha] = self.lua.compile((HEAD + script.text).encode())
        self._step, self._why = step, None
        try:
            keys, words = (self.lua.table_from([word(each) for each in all_]) for all_ in (names, args))
            well, found = self._run(chunk, self._redis, keys, words)
        except BaseException as error:
            raise self._why or error from None
        finally:
            self._step = None
        if self._why is not None:
            raise self._why
        if not well:
            raise ServerRefused(self._refusal(found, script))
        return self._reply(found)

    def _answer(self, *args: Any) -> Any:
        if self._why is not None or self._step is None:
            raise Ended
        try:
            reply = commands.run(self._step, [spelled(arg) for arg in args])
        except ServerRefused as error:
            if self._step.broken:
                self._why = error
                raise Ended from None
            return None, str(error).encode()
        except BaseException as error:
            self._why = error
            raise Ended from None
        return self._handed(reply), None

    def _handed(self, reply: Any) -> Any:
        """A reply as a script sees it."""
        if reply is None:
            return False
        if isinstance(reply, StatusReply):
            return self.lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return self.lua.table_from([self._handed(each) for each in reply])
        return reply

    def _reply(self, value: Any) -> Any:
        """What a script returns, as a reply."""
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, int | float):
            return int(value)
        if self._kind(value) != "table":
            return value
        if (refused := value[b"err"]) is not None:
            return ServerRefused(bytes(refused).decode("utf-8", "replace"))
        if (status := value[b"ok"]) is not None:
            return status
        found, at = list[Any](), 1
        while (each := value[at]) is not None:
            found.append(self._reply(each))
            at += 1
        return found

    def _refusal(self, found: Any, script: Script) -> str:
        if self._kind(found) == "table":
            found = found[b"err"]
        text = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
        return f"{text} script: {script.name}"


def spelled(arg: Any) -> bytes:
    """An argument of redis.call: numbers as Lua's C interface writes them there."""
    if isinstance(arg, bytes):
        return arg
    if isinstance(arg, bool) or not isinstance(arg, int | float):
        raise ServerRefused("ERR Lua redis() command arguments must be strings or integers")
    return b"%.17g" % arg


_local = threading.local()


def runner() -> ScriptRunner:
    found: ScriptRunner | None = getattr(_local, "runner", None)
    if found is None:
        found = _local.runner = ScriptRunner()
    return found
