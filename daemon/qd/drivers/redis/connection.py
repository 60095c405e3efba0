"""What a server has been told to do, and nobody has waited for yet (wire.py).

One connection to a Redis or Valkey server: TCP, TLS or a unix socket, with ACL user, database and name.

redis-py opens and closes the connection (client.py), hiredis parses the replies. What the queue's guarantees depend on is
here, on the connection's socket: no call is ever repeated behind the caller's back, every wait is bounded, and a wait for a
job ends at once when a signal writes to the mailbox. Forks and threads do not share a Wire.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

from qd.drivers.base import Patience
from qd.drivers.keyspace.base import Arg, Replies, Script, ScriptCall
from qd.drivers.redis.protocol import (
    check_welcome,
    classified,
    evalsha,
    greeting,
    is_last,
    is_unknown,
    packed,
    stranger,
    with_refusals,
    with_text,
)
from qd.drivers.redis.sentinel import target_of
from qd.drivers.redis.url import reason, unreached
from qd.errors import ConnectionLost, NoAnswer, QdError, ServerBusy, ServerRefused, Unreachable
from qd.process.descriptors import Identity, identity, ready_of
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.drivers.redis.client import Opened


class Owed:
    """The replies to so many commands that were written. They are read when somebody asks for them, or before another
    command is sent; a connection that is given up before that takes them along."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.replies: list[Any] | None = None
        self.error: QdError = ConnectionLost("the connection was closed before the reply was read")

    def __call__(self) -> list[Any]:
        if self.replies is None:
            raise self.error
        return self.replies


NAMED = 60.0  # seconds that finding the address of a name may take
LARGE = 1 << 20  # bytes of a reply that are worth a new reader
RATE = 1 << 16  # bytes a second that a large reply may come at, at least
LEAVING = 0.1  # seconds a server may take to hang up, too


class RedisConnection(Patience):
    """Connects on first use. After ConnectionLost it is closed, and the next call connects anew.

    timeout: seconds until a reply begins, and then until it is whole, a large one a second for each RATE bytes more;
    connect_timeout: seconds a connection may take. Both are always finite.
    """

    def __init__(self, url: str, *, name: str = "", connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.target = target_of(url)
        self.name = name
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self._connection: Opened | None = None  # redis-py's
        self._sock: socket.socket | None = None  # the connection's
        self._file: Identity | None = None  # the socket's: a job may close it, and its number be another file's then
        self._reader: Any = None
        self._owed: list[Owed] = []
        self._used = 0.0
        self.tells_of_breaks = False  # True: a connection that an idle wire has lost is told of, not made anew unseen
        self.about: Callable[[float], None] | None = None  # told that the caller lives, and what the next step may take

    @property
    def connected(self) -> bool:
        return self._sock is not None

    def connect(self) -> None:
        """Open and greet. Raises Unreachable, Unusable, ConnectionLost, ServerBusy or WrongPassword."""
        self.close()
        if self.about is not None:
            self.about(NAMED)
        user, password = self.target.login.ask(self.target.place)
        try:
            self._connection = self.target.connection(self.connect_timeout)
            sock: socket.socket = self._connection._sock
            self._sock, self._file = sock, identity(sock.fileno())
            sock.settimeout(self.timeout)
        except (OSError, ssl.SSLError) as error:
            self.close()
            raise unreached(error)(f"Redis at {self.target.place} does not answer: {reason(error)}") from None
        self._reader = hiredis.Reader()
        self._used = time.monotonic()
        said = greeting(self.target, self.name, user, password)
        try:
            check_welcome(self.target, said, self.call_many(said))
        except BaseException as error:
            self.close()
            self.target.doubted()
            if type(error) in (ConnectionLost, NoAnswer):
                raise Unreachable(str(error)) from None
            raise

    @property
    def place(self) -> str:
        return self.target.place

    @property
    def stranger(self) -> str:
        return stranger(self.target)

    def call(self, *args: Arg) -> Any:
        """One command, one reply."""
        self.send(packed(args))
        return self.receive()

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """A pipeline. Errors of single commands stand in the list as exceptions; raises ConnectionLost only."""
        return self.exchange([b"".join([packed(c) for c in commands])], len(commands))

    def exchange(self, commands: Sequence[bytes], count: int | None = None) -> list[Any]:
        """As call_many, of packed commands."""
        self.write_all(commands)
        return self.read_all(len(commands) if count is None else count)

    def write_all(self, commands: Sequence[bytes]) -> None:
        """Each by itself: no large one eats the time of the next."""
        for number, command in enumerate(commands):
            if number == 0:
                self.send(command)
            else:
                self._write(command)

    def read_all(self, count: int) -> list[Any]:
        replies: list[Any] = []
        try:
            for _ in range(count):
                replies.append(self._reply())
        except ConnectionLost:
            if replies and isinstance(replies[0], ServerBusy):  # full of clients: it says why, and hangs up
                raise replies[0] from None
            raise
        if any(is_last(reply) for reply in replies):
            self.close()
        return replies

    # A script is sent by its hash. A server that does not know it (SCRIPT FLUSH, a restart, a failover) has not run
    # anything, so it is sent again with its text: the only repetition there is.

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        return self.evaluate(script, evalsha(script, names, args))

    def evaluate(self, script: Script, command: bytes) -> Any:
        """Send a packed EVALSHA of this script."""
        self.send(command)
        try:
            return self.receive()
        except ServerRefused as error:
            if not is_unknown(error):
                raise
        self.send(with_text(script, command))
        return self.receive()

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return self.begin_many(calls)()

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        if not calls:
            return list
        owed, commands = Owed(len(calls)), [evalsha(call.script, call.names, call.args) for call in calls]
        if self._owed:  # behind those
            for command in commands:
                self._write(command)
        else:
            self.write_all(commands)
        self._owed.append(owed)
        return partial(self._replies, calls, owed)

    def _replies(self, calls: Sequence[ScriptCall], owed: Owed) -> list[Any]:
        self._settle()
        replies = owed()
        again = [place for place, reply in enumerate(replies) if is_unknown(reply)]
        if again:
            told, texts = set[str](), list[bytes]()
            for place in again:
                script, command = calls[place].script, evalsha(*calls[place][:3])
                texts.append(command if script.sha in told else with_text(script, command))
                told.add(script.sha)
            for place, reply in zip(again, self.exchange(texts), strict=True):
                replies[place] = reply
        return [with_refusals(reply) for reply in replies]

    def _settle(self) -> None:
        """Read what is owed. What breaks then is told to those who ask for it."""
        owed, self._owed = self._owed, []
        for place, each in enumerate(owed):
            if self._sock is None:
                return
            try:
                each.replies = self.read_all(each.count)
            except QdError as error:
                for lost in owed[place:]:
                    lost.error = error

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """One BLPOP. An alarm may end the wait and nothing else; left early, the connection is given up with it."""
        command = packed(("BLPOP", name, max(0.001, round(seconds, 3))))
        try:
            with shield:
                self.send(command)
            came = self.readable(seconds + self.timeout, wake)
            with shield:
                return bool(self.receive() if came else self.leave())
        except ConnectionLost:
            raise
        except BaseException:
            self.leave()
            raise

    def send(self, command: bytes) -> None:
        """Send packed bytes, on a fresh connection when there is none or when the one that is there went away."""
        if self._owed:
            self._settle()
        if self._sock is None:
            self.connect()
        elif time.monotonic() - self._used > 1.0 and (why := self._went_away()):
            if self.tells_of_breaks:
                self.lost(why)
            self.connect()
        self._write(command)

    def _write(self, command: bytes) -> None:
        assert self._sock is not None
        try:
            self._sock.sendall(command)
        except (OSError, ssl.SSLError) as error:
            self.lost(error)

    def receive(self) -> Any:
        """The next reply. Raises what the server answered as ServerBusy, WrongPassword or ServerRefused."""
        reply = self._reply()
        if isinstance(reply, Exception):
            if is_last(reply):
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
                if reply is False:
                    until = self._in_time(until, came)
            if came > LARGE and not reader.has_data():
                self._reader = hiredis.Reader()  # the old one would keep a copy until the next reply
        except (OSError, ssl.SSLError, hiredis.ProtocolError) as error:
            self.lost(error)
        if not self.target.must_be_primary:  # else it is asked for once a second, also when all goes well
            self._used = time.monotonic()
        if self.about is not None:
            self.about(0.0)
        return classified(str(reply)) if isinstance(reply, hiredis.ReplyError) else reply

    def _in_time(self, until: float, came: int) -> float:
        """A part of a reply came, of `came` bytes by now. Returns until when the rest is waited for, but for RATE; raises
        TimeoutError: each part on time is no answer, where they never make a whole."""
        at = time.monotonic()
        until = until or at + (self._sock.gettimeout() or self.timeout if self._sock else self.timeout)
        if at > until + came / RATE:
            raise TimeoutError
        return until

    def fileno(self) -> int:
        """-1: there is no connection."""
        return self._sock.fileno() if self._sock is not None else -1

    def readable(self, seconds: float, wake: int) -> bool:
        """Wait for the first byte of a reply, at most `seconds`, ended at once by the descriptor `wake`."""
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
        """Bytes came; False: they were TLS's own (a session ticket, a part of a record), not yet a reply or the end."""
        sock.settimeout(0)
        try:
            self._reader.feed(sock.recv(65536))
        except ssl.SSLWantReadError:
            return False
        except (OSError, ssl.SSLError):
            return True  # the next read tells
        finally:
            sock.settimeout(self.timeout)
        return True

    def leave(self) -> Any:
        """Take no reply any more, and close. Returns one that the server had already sent, else None.

        The server drops who hangs up in the middle of a blocking command: after the half-close nothing is served in
        vain. TLS knows no half-close; what was on its way then is lost.
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

    def _went_away(self) -> str:
        """Why it is not to be used again, "": it is. An idle one that is readable was closed (or holds a reply nobody waits
        for); and another server may be the primary now."""
        if self.readable(0, -1):
            return "the server closed the connection"
        self._used = time.monotonic()
        return self.target.replaced(self.connect_timeout)

    def lost(self, why: object) -> None:
        self.close()
        kind = NoAnswer if isinstance(why, TimeoutError) else ConnectionLost
        raise kind(f"the connection to Redis at {self.target.place} broke: {reason(why)}") from None

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        if self._sock is None:
            return
        if identity(self._sock.fileno()) == self._file:
            self._sock.settimeout(answer)
        else:
            self.close()

    def close(self) -> None:
        sock, self._sock, self._reader, self._owed = self._sock, None, None, []
        connection, self._connection = self._connection, None
        if sock is not None:
            if identity(sock.fileno()) == self._file:
                sock.close()
            else:
                sock.detach()
        if connection is not None:  # after the socket: redis-py would shut down what a job has under its number now
            connection.disconnect()
