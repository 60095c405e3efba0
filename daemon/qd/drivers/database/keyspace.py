"""DatabaseKeyspace: the keyspace on the tables of a database. See drivers/keyspace/base.py for its promises.

    a reading command    one or two statements, in no transaction
    anything else        one transaction: lock the names, read them and the clock, execute, write the names, COMMIT

Steps and commands on the same names run one after the other. After a deadlock a step is rolled back and run again.

Scripts (keyspace/scripts) run in this process, in the same Lua 5.1 as in a Redis server, over one transaction. Values are
converted as by Redis: nil is false, a number in a reply is cut to an integer, a table is a list up to its first hole, {ok=}
is a status, {err=} an error. There is one runtime per thread; each script is compiled once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sql
from lupa import lua51

from qd.drivers.database import commands, schema
from qd.drivers.database.connection import DatabaseConnection, Listening, again, channel_of
from qd.drivers.database.names import StatusReply, word
from qd.drivers.database.sql import statements
from qd.drivers.database.transaction import Step
from qd.drivers.keyspace.base import Arg, Replies, Script, ScriptCall, chunked_by_size
from qd.errors import ConnectionLost, ServerRefused
from qd.process.shield import shield

T = TypeVar("T")
TOGETHER = 1000  # names that one transaction locks, unless a single step names more
SWEEP = 5.0  # seconds between two sweeps by a keeper
SWEPT = 1000  # expired items that a sweep deletes, unless a single name has more


class DatabaseKeyspace:
    """A queue may share the connection: a call inside of `connection.transaction()` is part of that transaction. table: of
    its jobs, "" without a queue."""

    def __init__(self, connection: DatabaseConnection, table: str = "", prefix: str = "") -> None:
        self.connection, self.prefix = connection, prefix.encode()
        self.jobs = statements(connection.kind, connection.server.clock, table) if table else None
        self.patience, self.on_progress = connection.patience, connection.on_progress
        self.within, self.close = connection.within, connection.close
        self._swept_at = 0.0

    @property
    def place(self) -> str:
        return self.connection.place

    @property
    def stranger(self) -> str:
        return f"the tables of qd at {self.place} contain values that qd did not write: does another program use them?"

    # -- calls

    def call(self, *args: Arg) -> Any:
        words = [word(arg) for arg in args]
        command = commands.command_of(words)
        return self._run(command.names_in(words), lambda step: commands.run(step, words), command.writes)

    def call_many(self, given: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """See Keyspace.call_many. All of the commands are one step."""
        lines = [[word(arg) for arg in args] for args in given]
        found = [(commands.command_of(words), words) for words in lines]
        names = [name for command, words in found for name in command.names_in(words)]
        writes = any(command.writes for command, _ in found)
        return self._run(names, lambda step: commands.run_many(step, lines), writes)

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        (reply,) = self.run_many([ScriptCall(script, names, args)])
        if isinstance(reply, Exception):
            raise reply
        if script.name == "beat":  # of a keeper with this control connection, about once a second
            with suppress(ConnectionLost):  # the next call meets it, too
                self.sweep_after(SWEEP)
        return reply

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies = list[Any]()
        for some in chunked_by_size(calls, lambda call: len(call.names), TOGETHER, TOGETHER):
            names = [word(name) for call in some for name in call.names]
            try:
                replies += self._run(names, partial(self._run_each, some))
            except ServerRefused as error:
                if len(some) > 1:
                    raise
                replies.append(error)
        return replies

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        replies = self.run_many(calls)
        return lambda: replies

    def _run_each(self, calls: Sequence[ScriptCall], step: Step) -> list[Any]:
        """A single call is rolled back with its own transaction; each of several has a savepoint."""
        alone = len(calls) == 1 and self.connection.depth == 1
        return [run_step(step, call) if alone else self._run_in_savepoint(step, call) for call in calls]

    def _run_in_savepoint(self, step: Step, call: ScriptCall) -> Any:
        self.connection.query("SAVEPOINT qd_step")
        try:
            reply = run_step(step, call)
        except ServerRefused as error:
            self.connection.query("ROLLBACK TO SAVEPOINT qd_step")
            step.forget()
            return error
        self.connection.query("RELEASE SAVEPOINT qd_step")
        return reply

    def _run(self, names: Sequence[bytes], act: Callable[[Step], T], writes: bool = True) -> T:
        """The result of `act` in a step on these names; it runs again after a deadlock."""

        def attempt() -> T:
            step = Step(self.connection, self.jobs, self.prefix, locks=writes)
            with shield, self.connection.transaction() if writes else nullcontext():
                step.open(names)
                result = act(step)
                step.flush()
            return result

        return again(self.connection, attempt)

    # -- waiting

    def pop(self, name: str, seconds: float) -> bool:
        until, listening = time.monotonic() + seconds, Listening(self.connection)
        try:
            while not (found := bool(self.call("LLEN", name)) and self.call("LPOP", name) is not None):
                left = until - time.monotonic()
                if left <= 0 or not listening.wait({channel_of(name.encode())}, left, -1):
                    break
        except BaseException:
            listening.abort()
            raise
        listening.end()
        return found

    # -- expired names

    def sweep_after(self, seconds: float) -> None:
        """Sweep if the last sweep was so long ago, or did not finish."""
        if time.monotonic() - self._swept_at > seconds:
            self._swept_at = 0.0 if self.sweep() else time.monotonic()

    def sweep(self) -> int:
        """Delete some of the expired names. Returns how many; call again until it returns 0."""
        columns = schema.names.c
        clock: sql.ColumnElement[int] = sql.literal_column(self.connection.server.clock)
        query = sql.select(columns.name, columns.whole, columns.size).where(columns.expires_at <= clock).limit(100)
        found, size = list[bytes](), 0
        for row in self.connection.execute(query.order_by(columns.expires_at)):
            found.append(bytes(row.whole or row.name))
            size += row.size
            if size > SWEPT:
                break
        if found:
            self._run(found, lambda step: step.sweep_expired(found))
        return len(found)


def run_step(step: Step, call: ScriptCall) -> Any:
    """Run a script and write its changes. Raises ServerRefused."""
    reply = runner().run(step, call.script, call.names, call.args)
    step.flush()
    return reply


# `answer` returns a reply, or nil and the text of a refusal. An error that has ended the whole step is raised again by every
# later call, so that no pcall of a script continues after it.
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
HEAD = "local redis, KEYS, ARGV = ... "  # on the first line, so that line numbers stay right
RUN = "local chunk, redis, KEYS, ARGV = ... local well, found = pcall(chunk, redis, KEYS, ARGV) return well, found"


class Ended(BaseException):
    """The step cannot continue; the ScriptRunner has the reason."""


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
        self._failure: BaseException | None = None

    def run(self, step: Step, script: Script, names: Sequence[Arg], args: Sequence[Arg]) -> Any:
        """The reply. Raises ServerRefused if the script raises; an error that it returns is a ServerRefused as reply."""
        chunk = self._chunks.get(script.sha)
        if chunk is None:
            chunk = self._chunks[script.sha] = self.lua.compile((HEAD + script.text).encode())
        self._step, self._failure = step, None
        try:
            keys, words = (self.lua.table_from([word(each) for each in all_]) for all_ in (names, args))
            well, found = self._run(chunk, self._redis, keys, words)
        except BaseException as error:
            raise self._failure or error from None
        finally:
            self._step = None
        if self._failure is not None:
            raise self._failure
        if not well:
            refusal = found[b"err"] if self._kind(found) == "table" else found
            text = refusal.decode("utf-8", "replace") if isinstance(refusal, bytes) else str(refusal)
            raise ServerRefused(f"{text} script: {script.name}")
        return self._from_lua(found)

    def _answer(self, *args: Any) -> Any:
        if self._failure is not None or self._step is None:
            raise Ended
        try:
            reply = commands.run(self._step, [spelled(arg) for arg in args])
        except ServerRefused as error:
            if self._step.broken:
                self._failure = error
                raise Ended from None
            return None, str(error).encode()
        except BaseException as error:
            self._failure = error
            raise Ended from None
        return self._to_lua(reply), None

    def _to_lua(self, reply: Any) -> Any:
        """A reply as a value for the script."""
        if reply is None:
            return False
        if isinstance(reply, StatusReply):
            return self.lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return self.lua.table_from([self._to_lua(each) for each in reply])
        return reply

    def _from_lua(self, value: Any) -> Any:
        """A value that the script returns, as a reply."""
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
            found.append(self._from_lua(each))
            at += 1
        return found


def spelled(arg: Any) -> bytes:
    """An argument of redis.call; numbers as Lua's C interface writes them."""
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
