"""One connection to a Redis or Valkey server: TCP, TLS or a unix socket, with ACL user, database and name.

redis-py opens and closes the socket (client.py), hiredis parses the replies. This file does what the queue's guarantees
need: no call is repeated silently, every wait is bounded, and a wait for a job ends immediately when a signal writes to the
mailbox. Each process and thread has its own connection.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import hiredis

from qd.drivers.base import Patience
from qd.drivers.keyspace.base import Arg, Replies, Script, ScriptCall
from qd.drivers.redis import protocol
from qd.drivers.redis.sentinel import target_of
from qd.drivers.redis.url import UNSURE, reason, unreached
from qd.errors import ConnectionLost, NoAnswer, QdError, ServerBusy, ServerRefused, Unreachable
from qd.process.descriptors import Identity, identity, ready_of
from qd.process.shield import shield


class PendingReplies:
    """The replies to `count` commands that were sent. They are read when the caller calls this object, or before the next
    command is sent. If the connection is closed before, they are lost."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.replies: list[Any] | None = None
        self.error: QdError = ConnectionLost("the connection was closed before the reply was read")

    def __call__(self) -> list[Any]:
        if self.replies is None:
            raise self.error
        return self.replies


NAMED = 60.0  # seconds that resolving a host name may take
LARGE = 1 << 20  # bytes of a reply after which the reader is replaced
RATE = 1 << 16  # bytes per second, the minimum for a large reply
LEAVING = 0.1  # seconds a server may take to close the connection, too


def write_some(fd: int, command: bytes) -> int:
    """Write what fits into the buffer of a socket with a timeout: most commands do. Returns how many bytes that were.

    sendall() would first wait until there is room, one more system call for each command."""
    try:
        return os.write(fd, command)
    except BlockingIOError:
        return 0


class RedisConnection(Patience):
    """Connects on first use. After ConnectionLost it is closed, and the next call connects again.

    timeout: seconds until a reply begins, and again until it is complete, plus a second for each RATE bytes of it;
    connect_timeout: seconds to connect. Both are always finite.
    """

    def __init__(self, url: str, *, name: str = "", connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.target, self.name = target_of(url), name
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self._connection: Any = None  # redis-py's
        self._sock: socket.socket | None = None  # of _connection
        self._file: Identity | None = None  # of the socket: a job may close it and reuse its descriptor
        self._reader: Any = None
        self._pending: list[PendingReplies] = []
        self._used = 0.0
        self.report_breaks = False  # True: raise ConnectionLost if the idle connection was lost, do not reconnect

    @property
    def connected(self) -> bool:
        return self._sock is not None

    def connect(self) -> None:
        """Open and greet. Raises Unreachable, Unusable, ConnectionLost, ServerBusy or WrongPassword."""
        from qd.drivers.redis import client  # it loads redis-py

        self.close()
        self.report_progress(NAMED)
        user, password = self.target.login.ask(self.target.place)
        try:
            self.target.locate(self.connect_timeout)
            self._connection = client.opened(self.connect_timeout, **self.target.where)
            sock: socket.socket = self._connection._sock
            self._sock, self._file = sock, identity(sock.fileno())
            sock.settimeout(self.timeout)
        except OSError as error:
            self.close()
            self.target.distrust()
            raise unreached(error)(f"Redis at {self.target.place} does not answer: {reason(error)}") from None
        self._reader = hiredis.Reader()
        self._used = time.monotonic()
        commands = protocol.greeting(self.target, self.name, user, password)
        try:
            protocol.check_welcome(self.target, commands, self.call_many(commands))
        except BaseException as error:
            self.close()
            self.target.distrust()
            if type(error) in (ConnectionLost, NoAnswer):
                raise Unreachable(str(error).removesuffix(UNSURE)) from None
            raise

    @property
    def place(self) -> str:
        return self.target.place

    @property
    def stranger(self) -> str:
        return protocol.stranger(self.target)

    def call(self, *args: Arg) -> Any:
        self.send(protocol.packed(args))
        return self.receive()

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """A pipeline. Errors of single commands are exceptions in the list; raises ConnectionLost only."""
        self.send(b"".join([protocol.packed(command) for command in commands]))
        return self.read_all(len(commands))

    def write_all(self, commands: Sequence[bytes]) -> None:
        """Write packed commands one by one, so that each has its own time limit."""
        self.send(commands[0])
        for command in commands[1:]:
            self._write(command)

    def read_all(self, count: int) -> list[Any]:
        replies: list[Any] = []
        try:
            for _ in range(count):
                replies.append(self._reply())
        except ConnectionLost:
            if replies and isinstance(replies[0], ServerBusy):  # too many clients: it replies with that and closes
                raise replies[0] from None
            raise
        if any(protocol.is_last(reply) for reply in replies):
            self.close()
        return replies

    # A script is sent by its hash. A server that does not know it (SCRIPT FLUSH, a restart, a failover) has executed
    # nothing, so the script is sent again with its text. Nothing else is ever repeated.

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        return self.evaluate(script, protocol.evalsha(script, names, args))

    def evaluate(self, script: Script, command: bytes) -> Any:
        """Send a packed EVALSHA of this script."""
        self.send(command)
        try:
            return self.receive()
        except ServerRefused as error:
            if not protocol.is_unknown(error):
                raise
        self.send(protocol.with_text(script, command))
        return self.receive()

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return self.begin_many(calls)()

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        if not calls:
            return list
        pending, commands = PendingReplies(len(calls)), [protocol.evalsha(*call[:3]) for call in calls]
        if self._pending:  # send() would read these first
            for command in commands:
                self._write(command)
        else:
            self.write_all(commands)
        self._pending.append(pending)
        return partial(self._replies, calls, pending)

    def _replies(self, calls: Sequence[ScriptCall], pending: PendingReplies) -> list[Any]:
        self._settle()
        replies = pending()
        again = [place for place, reply in enumerate(replies) if protocol.is_unknown(reply)]
        if again:
            sent, texts = set[str](), list[bytes]()
            for place in again:
                script, command = calls[place].script, protocol.evalsha(*calls[place][:3])
                texts.append(command if script.sha in sent else protocol.with_text(script, command))
                sent.add(script.sha)
            self.write_all(texts)
            for place, reply in zip(again, self.read_all(len(texts)), strict=True):
                replies[place] = reply
        return [protocol.with_refusals(reply) for reply in replies]

    def _settle(self) -> None:
        """Read all pending replies. An error is raised by the pending objects, not here."""
        pending, self._pending = self._pending, []
        for place, each in enumerate(pending):
            if self._sock is None:
                return
            try:
                each.replies = self.read_all(each.count)
            except QdError as error:
                for lost in pending[place:]:
                    lost.error = error

    def pop(self, name: str, seconds: float) -> bool:
        """One BLPOP. An alarm can interrupt only the wait; the connection is then closed."""
        command = protocol.packed(("BLPOP", name, max(0.001, round(seconds, 3))))
        try:
            with shield:
                self.send(command)
            came = self.readable(seconds + self.timeout, -1)
            with shield:
                return bool(self.receive() if came else self.leave())
        except ConnectionLost:
            raise
        except BaseException:
            self.leave()
            raise

    def send(self, command: bytes) -> None:
        """Send packed bytes. Connects first if there is no connection, or if the idle one was lost."""
        if self._pending:
            self._settle()
        if self._sock is None:
            self.connect()
        elif time.monotonic() - self._used > 1.0 and (why := self._idle_fault()):
            if self.report_breaks:
                self.lost(why)
            self.connect()
        self._write(command)

    def _write(self, command: bytes) -> None:
        sock = self._sock
        assert sock is not None
        try:
            sent = 0 if isinstance(sock, ssl.SSLSocket) else write_some(sock.fileno(), command)
            if sent < len(command):
                sock.sendall(memoryview(command)[sent:])
        except OSError as error:
            self.lost(error)

    def receive(self) -> Any:
        """The next reply. Raises an error reply as ServerBusy, WrongPassword or ServerRefused."""
        reply = self._reply()
        if isinstance(reply, Exception):
            if protocol.is_last(reply):
                self.close()
            raise reply
        return reply

    def _reply(self) -> Any:
        reader, sock, came, until = self._reader, self._sock, 0, 0.0
        try:
            reply = reader.gets()
            while reply is False:
                data = sock.recv(65536) if sock is not None else b""
                if not data:
                    self.lost("the server closed the connection")
                reader.feed(data)
                came += len(data)
                reply = reader.gets()
                if reply is False:  # more of it comes: limit the time of the whole reply
                    at = time.monotonic()
                    until = until or at + ((sock and sock.gettimeout()) or self.timeout)
                    if at > until + came / RATE:
                        raise TimeoutError
            if came > LARGE and not reader.has_data():
                self._reader = hiredis.Reader()  # the old one keeps a copy until the next reply
        except (OSError, hiredis.ProtocolError) as error:
            self.lost(error)
        if not self.target.must_be_primary:  # else send() checks once a second that it still is
            self._used = time.monotonic()
        if self.about is not None:
            self.about(0.0)
        return protocol.classified(str(reply)) if isinstance(reply, hiredis.ReplyError) else reply

    def fileno(self) -> int:
        """-1: there is no connection."""
        return self._sock.fileno() if self._sock is not None else -1

    def readable(self, seconds: float, wake: int) -> bool:
        """Wait at most `seconds` for the first byte of a reply. The descriptor `wake` ends the wait immediately."""
        sock, until = self._sock, time.monotonic() + seconds
        while sock is not None:
            if isinstance(sock, ssl.SSLSocket) and sock.pending():
                return True
            came = ready_of([sock.fileno(), wake], until - time.monotonic())
            if sock.fileno() not in came:
                return False
            if not isinstance(sock, ssl.SSLSocket) or self._decrypts(sock):
                return True
        return False

    def _decrypts(self, sock: ssl.SSLSocket) -> bool:
        """Whether the bytes that arrived belong to a reply, or are the end. False: they were TLS's own (a session ticket,
        part of a record)."""
        sock.settimeout(0)
        try:
            self._reader.feed(sock.recv(65536))
        except ssl.SSLWantReadError:
            return False
        except OSError:
            return True  # the next read raises it
        finally:
            sock.settimeout(self.timeout)
        return True

    def leave(self) -> Any:
        """Close without waiting for the reply. Returns the reply if the server had already sent it, else None.

        A server drops a client that hangs up during a blocking command, so after the half-close it pops no token. TLS has no
        half-close; a reply in transit is lost then.
        """
        sock, reply = self._sock, None
        if sock is not None and not isinstance(sock, ssl.SSLSocket):
            try:
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(LEAVING)
                reply = self._reply()
            except (OSError, ConnectionLost):
                pass
        self.close()
        return None if isinstance(reply, Exception) else reply

    def _idle_fault(self) -> str:
        """Why the idle connection must not be used, "" if it may. If it is readable, it was closed (or has a reply without a
        call); and another server may be the primary now."""
        if self.readable(0, -1):
            return "the server closed the connection"
        self._used = time.monotonic()
        return self.target.replaced(self.connect_timeout)

    def lost(self, why: object) -> None:
        self.close()
        kind = NoAnswer if isinstance(why, TimeoutError) else ConnectionLost
        limit = f" ({self.timeout:g} s){UNSURE}" if kind is NoAnswer else ""
        raise kind(f"the connection to Redis at {self.target.place} broke: {reason(why)}{limit}") from None

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        if self._sock is None:
            return
        if identity(self._sock.fileno()) == self._file:
            self._sock.settimeout(answer)
        else:
            self.close()

    def close(self) -> None:
        sock, self._sock, self._reader, self._pending = self._sock, None, None, []
        connection, self._connection = self._connection, None
        if sock is not None:
            if identity(sock.fileno()) == self._file:
                sock.close()
            else:
                sock.detach()
        if connection is not None:  # last, or redis-py would shut down a job's file that reuses the descriptor
            connection.disconnect()
