"""A connection to a Redis or Valkey server for the tasks of one event loop.

    AsyncQueue         do(step): the methods of a queue and of its stores, without a thread
    AsyncConnection    connects, and again after the connection broke; shared by the tasks
    Link               an open connection: what the tasks send in one iteration of the loop leaves in one write

redis.asyncio opens the connection (TCP, TLS, unix). As in connection.py, everything after that is qd's: no call is repeated
silently, and every wait is bounded. Replies come in the order of the commands. The reply of a cancelled task is read and
dropped, so it cannot be taken for another one's. The command itself may have been executed, as after ConnectionLost.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import hiredis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from qd.drivers.base import Connector
from qd.drivers.keyspace.base import Arg, Keyspace, Script, ScriptCall, Unanswered, checked
from qd.drivers.keyspace.queue import KeyspaceQueue
from qd.drivers.loops import Once
from qd.drivers.redis import client, protocol
from qd.drivers.redis.connection import LARGE, RATE
from qd.drivers.redis.sentinel import target_of
from qd.drivers.redis.url import UNSURE, RedisUrl, reason, unreached
from qd.errors import ConnectionLost, NoAnswer, QdError, ServerBusy, Unreachable
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings

T = TypeVar("T")
FULL = 1 << 15  # bytes that are written at once: the server should work while other tasks still send
LATE = 0.1  # seconds to read what has arrived while the program blocked the loop
IDLE = 1.0  # seconds after which the connection is checked before it is used
SPARES = 16  # connections kept for waits


class Link(asyncio.Protocol):
    """timeout: seconds until a reply begins, and again until it is complete, plus a second for each RATE bytes of it."""

    def __init__(self, transport: asyncio.Transport, streams: object, place: str, timeout: float) -> None:
        self._transport, self._place, self.timeout = transport, place, timeout
        self._streams = streams  # they close the transport when they are deleted
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader()
        self._due = deque[tuple[asyncio.Future[list[Any]], int, list[Any]]]()  # count of replies, those that came
        self._unsent, self._bytes = list[bytes](), 0
        self._timer: asyncio.TimerHandle | None = None
        self._came = 0  # bytes of the reply that is being received
        self._blocked = False  # the loop may have been blocked: LATE is running
        self.moved = self._loop.time()  # when the last reply came, or the first command was sent
        self.open = True  # False: no command may be sent any more

    @property
    def busy(self) -> bool:
        return bool(self._due)

    def send(self, commands: Sequence[bytes]) -> asyncio.Future[list[Any]]:
        """The replies; errors among them are exceptions in the list. Raises ConnectionLost."""
        if not self.open:
            raise ConnectionLost("the connection was closed before the command was sent")
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not self._due:
            self.moved = self._loop.time()
            self._timer = self._timer or self._loop.call_later(self.timeout, self._check)
        self._due.append((future, len(commands), []))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += commands
        self._bytes += sum(map(len, commands))
        if self._bytes > FULL:
            self._flush()
        return future

    def _flush(self) -> None:
        if self._unsent:
            text, self._bytes = b"".join(self._unsent), 0
            self._unsent.clear()
            if not self._transport.is_closing():  # else connection_lost() follows
                self._transport.write(text)

    def _check(self) -> None:
        self._timer = None
        if not self._due:
            return
        now, until = self._loop.time(), self.moved + self.timeout
        if self._came:
            until += self.timeout + self._came / RATE
        if now >= until:
            if self._blocked:
                return self.lose(TimeoutError())
            self._blocked, until = True, now + LATE
        self._timer = self._loop.call_at(until, self._check)

    def data_received(self, data: bytes) -> None:
        self._came, self._blocked = self._came + len(data), False
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                if not self._due:
                    return self.lose("the server sent a reply without a call")
                self._take(protocol.classified(str(reply)) if isinstance(reply, hiredis.ReplyError) else reply)
        except hiredis.ProtocolError as error:
            self.lose(error)
        if not self.open and not self._due:
            self.close()

    def _take(self, reply: Any) -> None:
        if self._came > LARGE and not self._parser.has_data():
            self._parser = hiredis.Reader()  # the old one keeps a copy until the next reply
        self._came, self.moved = 0, self._loop.time()
        future, count, replies = self._due[0]
        replies.append(reply)
        if isinstance(reply, Exception | list) and protocol.is_last(reply):
            self.open = False
        if len(replies) == count:
            self._due.popleft()
            if not future.done():
                future.set_result(replies)

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(error or "the server closed the connection")

    def lose(self, why: object) -> None:
        kind = NoAnswer if isinstance(why, TimeoutError) else ConnectionLost
        limit = f" ({self.timeout:g} s){UNSURE}" if kind is NoAnswer else ""
        self.close(kind(f"the connection to Redis at {self._place} broke: {reason(why)}{limit}"))

    def close(self, error: QdError | None = None) -> None:
        self.open = False
        self._unsent.clear()
        error, due = error or ConnectionLost("the connection was closed before the reply was read"), self._due
        self._due = deque()
        if self._timer is not None:
            self._timer.cancel()
        with suppress(RuntimeError):  # the loop was closed
            self._transport.abort()
            for future, _, replies in due:
                if not future.done():
                    busy = replies and isinstance(replies[0], ServerBusy)  # too many clients: it replies so and closes
                    future.set_exception(replies[0] if busy else error)

    def looks_dead(self) -> bool:
        """Whether the idle connection is readable: it was closed, or has a reply without a call."""
        fd = self._transport.get_extra_info("socket").fileno()
        return fd < 0 or bool(ready_of([fd], 0))


async def opened(target: RedisUrl, timeout: float) -> tuple[asyncio.Transport, bytes, object]:
    """A connection opened by redis.asyncio: its transport, what the server has sent already, and what must be kept as long
    as the transport is used. Raises OSError."""
    made = client.unconnected((Connection, Tls, Unix), timeout, **target.where)
    try:
        await made.connect()
    except client.FAILURES as error:
        raise client.os_error(error) from None
    reader, writer = made._reader, made._writer
    made._reader = made._writer = None  # it is ours now
    reader.feed_eof()
    return writer.transport, await reader.read(), (reader, writer)


class Unix(UnixDomainSocketConnection):
    async def on_connect(self) -> None:
        """No handshake."""


class Tls(SSLConnection):
    """See client.TlsConnection."""

    def __init__(self, context: ssl.SSLContext, **where: Any) -> None:
        super().__init__(**where)
        self._context = context

    def _connection_arguments(self) -> dict[str, Any]:
        return {"host": self.host, "port": self.port, "ssl": self._context}


class AsyncConnection:
    """Connects on first use, and again after ConnectionLost. Used by one event loop."""

    def __init__(self, url: str, name: str, timeout: float) -> None:
        self.target, self.name, self.timeout = target_of(url), name, timeout
        self._link: Link | None = None
        self.make_usable = Once(self._made_usable)
        self._checked = 0.0  # when it was last known to be connected to the right server, monotonic
        self._sent_text = set[str]()  # hashes of the scripts whose text was sent over this connection

    async def ask(self, command: bytes, more: float = 0.0) -> Any:
        """The reply to one command. more: seconds by which the command itself waits. Raises as RedisConnection.call."""
        link = self.usable() or await self.make_usable()
        link.timeout = self.timeout + more
        return checked(await link.send([command]))[0]

    async def with_texts(self, commands: Sequence[bytes], scripts: Sequence[Script | None], replies: list[Any]) -> None:
        """Send scripts that the server does not know again with their text. It has executed nothing of them."""
        for last in (False, True):
            again, texts = [place for place, reply in enumerate(replies) if protocol.is_unknown(reply)], list[bytes]()
            for place in again:
                command, script = commands[place], scripts[place]
                if script is not None and (last or script.sha not in self._sent_text):
                    self._sent_text.add(script.sha)
                    command = protocol.with_text(script, command)
                texts.append(command)
            if texts:
                link = self.usable() or await self.make_usable()
                for place, reply in zip(again, await link.send(texts), strict=True):
                    replies[place] = reply

    def usable(self) -> Link | None:
        link = self._link
        if link is None or not link.open:
            return None
        now = time.monotonic()
        if now - self._checked > IDLE:
            if self.target.must_be_primary or (not link.busy and link.looks_dead()):
                return None
            self._checked = now
        return link

    async def _made_usable(self) -> Link:
        link = self._link
        if link is not None and link.open and not (not link.busy and link.looks_dead()):
            why = await asyncio.to_thread(self.target.replaced, self.timeout)
            self._checked = time.monotonic()
            if not why and link.open:
                return link
            link.lose(why or "the server closed the connection")
        while link is not None and link.busy:  # after a last reply; the others come, or time out
            await asyncio.sleep(0.001)
        self.close()
        return await self._connect()

    async def _connect(self) -> Link:
        target = self.target
        user, password = target.login[:2]
        if target.login.provider:
            user, password = await asyncio.to_thread(target.login.ask, target.place)
        try:
            if target.must_be_primary:
                await asyncio.to_thread(target.locate, self.timeout)
            transport, early, streams = await opened(target, self.timeout)
        except OSError as error:
            target.distrust()
            raise unreached(error)(f"Redis at {target.place} does not answer: {reason(error)}") from None
        link = Link(transport, streams, target.place, self.timeout)
        transport.set_protocol(link)
        commands = protocol.greeting(target, self.name, user, password)
        try:
            replies = link.send([protocol.packed(command) for command in commands])
            if early:  # too many clients
                link.data_received(early)
            protocol.check_welcome(target, commands, await replies)
        except BaseException as error:
            link.close()
            target.distrust()
            if type(error) in (ConnectionLost, NoAnswer):
                raise Unreachable(str(error).removesuffix(UNSURE)) from None
            raise
        self._link, self._checked, self._sent_text = link, time.monotonic(), set()
        return link

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class Replayed:
    """The Keyspace of a step. `known`: the replies to its first calls; the next call raises Unanswered."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection, self.close = connection, connection.close
        self.known: list[list[Any] | QdError] = []
        self.at = 0  # index of the next call

    @property
    def stranger(self) -> str:
        return protocol.stranger(self._connection.target)

    def _replies(self, commands: Callable[[], Sequence[bytes]], scripts: Sequence[Script | None]) -> list[Any]:
        if self.at == len(self.known):
            raise Unanswered(commands(), scripts)
        found = self.known[self.at]
        self.at += 1
        if isinstance(found, QdError):
            raise found
        return found

    def _reply(self, command: Callable[[], bytes], script: Script | None) -> Any:
        return checked(self._replies(lambda: [command()], (script,)))[0]

    def call(self, *args: Arg) -> Any:
        return self._reply(lambda: protocol.packed(args), None)

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        return self._replies(lambda: [protocol.packed(command) for command in commands], (None,) * len(commands))

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        return self._reply(lambda: protocol.evalsha(script, names, args), script)

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies = self._replies(
            lambda: [protocol.evalsha(*call[:3]) for call in calls], [call.script for call in calls]
        )
        return [protocol.with_refusals(reply) for reply in replies]


class AsyncQueue:
    """A queue and its stores for the tasks of one event loop."""

    def __init__(self, settings: ConnectionSettings, title: str, patience: float) -> None:
        self._new = partial(AsyncConnection, settings.url or "", title, patience)
        self._connection = self._new()
        self._space = Replayed(self._connection)
        # All that `do` needs; not sizes, waits and a worker's turn.
        self._queue = cast(Connector, KeyspaceQueue(settings, cast(Keyspace, self._space)))
        self._spares = list[AsyncConnection]()

    async def do(self, step: Callable[[Connector], T]) -> T:
        """The result of step(queue). It runs again with each reply that has come, until no call is left without one. So it
        must do nothing but call the server and compute. Raises as step(queue)."""
        known = list[list[Any] | QdError]()
        while True:
            self._space.known, self._space.at = known, 0
            try:
                return step(self._queue)
            except Unanswered as asked:
                commands, scripts = asked.commands, asked.scripts
            try:
                link = self._connection.usable() or await self._connection.make_usable()
                replies = await link.send(commands)
                if any(map(protocol.is_unknown, replies)):
                    await self._connection.with_texts(commands, scripts, replies)
                known.append(replies)
            except QdError as error:  # raised by the call, whose error handling is part of the step
                known.append(error)

    async def do_within(self, seconds: float, step: Callable[[Connector], T]) -> T:
        """As do, in at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self.do(step)
        except TimeoutError:
            where = self._connection.target.place
            raise NoAnswer(f"Redis at {where} does not answer: no answer in time ({seconds:g} s){UNSURE}") from None

    async def pop(self, name: str, seconds: float) -> bool:
        """Take the first item of the list `name`, waiting at most `seconds`, on a connection of its own."""
        spare, fit = self._spares.pop() if self._spares else self._new(), False
        try:
            reply = await spare.ask(protocol.packed(("BLPOP", name, max(0.001, round(seconds, 3)))), seconds)
            fit = len(self._spares) < SPARES
        finally:
            if fit:
                self._spares.append(spare)
            else:
                spare.close()
        return bool(reply)

    def close(self) -> None:
        for each in (self._connection, *self._spares):
            each.close()
