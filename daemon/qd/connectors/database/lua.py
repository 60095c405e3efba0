"""Steps (keyspace/scripts) run beside the database, by the same Lua 5.1 that a Redis server has, over one transaction.

What a script may do and what becomes of its values are Redis's: nil is false, a number in a reply is cut to an integer, a
table is a list up to its first hole, {ok=} a status, {err=} an error. One runtime a thread; each script is compiled once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51

from qd.connectors.database import commands
from qd.connectors.database.step import Step
from qd.connectors.database.words import Status, word
from qd.connectors.keyspace.base import Arg, Script
from qd.errors import ServerRefused

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


class Runner:
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
        if isinstance(reply, Status):
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


def runner() -> Runner:
    found: Runner | None = getattr(_local, "runner", None)
    if found is None:
        found = _local.runner = Runner()
    return found
