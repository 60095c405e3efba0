"""One connection to a beanstalkd, over greenstalk, on a socket whose reads are bounded and end when a descriptor wakes.

Errors of greenstalk and of the socket are raised as qd's. A connection that broke is closed; beanstalkd makes the jobs that
it had reserved ready again.
"""

from __future__ import annotations

import math
import socket
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

import greenstalk

from qd.drivers.base import Patience
from qd.drivers.urls import BeanstalkdUrl
from qd.errors import ConnectionLost, QdError, ServerBusy, ServerRefused, TooLarge, Unreachable
from qd.process.descriptors import Identity, identity, ready_of

Client = greenstalk.Client[bytes]
ReservedJob = tuple[int, bytes]  # number and body
RESOLVE = 10.0  # seconds that resolving the host name may take
REFUSALS: dict[bytes, type[greenstalk.BeanstalkdError]] = {
    b"JOB_TOO_BIG": greenstalk.JobTooBigError,
    b"DRAINING": greenstalk.DrainingError,
    b"OUT_OF_MEMORY": greenstalk.OutOfMemoryError,
    b"BURIED": greenstalk.BuriedError,
}
MEANINGS: dict[type[greenstalk.BeanstalkdError], tuple[type[QdError], str]] = {
    greenstalk.JobTooBigError: (
        TooLarge,
        "accepts no job of this size: start it with -z BYTES (default 65535), or store large data elsewhere and send a "
        "reference to it",
    ),
    greenstalk.DrainingError: (ServerBusy, "is draining (USR1) and accepts no new jobs"),
    greenstalk.OutOfMemoryError: (ServerBusy, "is out of memory and accepts no new jobs"),
    greenstalk.BuriedError: (ServerBusy, "is out of memory and has buried the job"),
}
LINE = 1 << 12  # bytes of the first line of a reply, at most


class Woken(Exception):
    """The wake descriptor became readable before a reply came."""


class BoundedSocket(socket.socket):
    """seconds: how long a read waits; None: the timeout of the socket. wake: a descriptor that ends a wait of `seconds`; -1:
    none."""

    seconds: float | None = None
    wake = -1

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if self.seconds is None:
            return super().recv_into(buffer, nbytes, flags)
        until = time.monotonic() + self.seconds
        while True:
            ready = ready_of((self.fileno(), self.wake), until - time.monotonic())
            if self.fileno() in ready:
                return super().recv_into(buffer, nbytes, flags)
            if ready:
                raise Woken
            if time.monotonic() >= until:
                raise TimeoutError("no answer in time")


class Session:
    """See BeanstalkdConnection.session. It has no state of its own, so one serves every `with`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: BeanstalkdConnection) -> None:
        self._connection = connection

    def __enter__(self) -> Client:
        return self._connection.client()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            ours = self._connection.translated(error)
            if ours is not error:
                raise ours from None
        else:
            self._connection.report_progress()


class BeanstalkdConnection(Patience):
    """Connects on first use. After ConnectionLost it is closed, and the next call connects again. life: counts connections;
    jobs that an earlier one had reserved are no longer reserved."""

    def __init__(self, url: str) -> None:
        self.target = BeanstalkdUrl(url)
        self.connect_timeout = self.timeout = 5.0
        self.life = 0
        self._client: Client | None = None
        self._sock: BoundedSocket | None = None
        self._unread = b""  # bytes of replies; greenstalk, too, buffers nothing between two replies
        self._file: Identity | None = None  # of the socket, to detect that a job has closed it
        self._using = "default"
        self.watched: tuple[str, ...] = ("default",)  # tubes
        self._session = Session(self)

    @property
    def place(self) -> str:
        return self.target.place

    def client(self) -> Client:
        if self._client is None:
            self.report_progress(RESOLVE)
            try:
                plain = socket.create_connection((self.target.host, self.target.port), self.connect_timeout)
            except OSError as error:
                raise Unreachable(f"beanstalkd at {self.place} does not answer: {reason(error)}") from None
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._sock = BoundedSocket(plain.family, plain.type, plain.proto, plain.detach())
            self._sock.settimeout(self.timeout)  # for writes
            self._file = identity(self._sock.fileno())
            self._client = greenstalk.Client(self._sock, encoding=None)
            self._unread = b""
            self._using, self.watched = "default", ("default",)
            self.life += 1
        return self._client

    def session(self) -> Session:
        """A context: the client, with errors raised as ours. NotFoundError, TimedOutError and DeadlineSoonError are answers
        and stay as they are."""
        return self._session

    def translated(self, error: BaseException) -> BaseException:
        """The error to raise instead."""
        if isinstance(
            error, (greenstalk.NotFoundError, greenstalk.TimedOutError, greenstalk.DeadlineSoonError, QdError)
        ):
            return error
        if isinstance(error, greenstalk.BeanstalkdError):
            return self.refused(error)
        self.close()
        if isinstance(error, OSError):
            self.report_progress()  # a worker that gives up an answer is alive
            return ConnectionLost(f"the connection to beanstalkd at {self.place} broke: {reason(error)}")
        if isinstance(error, (greenstalk.UnknownResponseError, AssertionError, ValueError, IndexError)):
            return ConnectionLost(
                f"the server at {self.place} does not answer like beanstalkd: is it the port of another program?"
            )
        return error  # interrupted in the middle of a reply

    def refused(self, error: greenstalk.BeanstalkdError) -> QdError:
        if type(error) in MEANINGS:
            kind, text = MEANINGS[type(error)]
            return kind(f"beanstalkd at {self.place} {text}")
        self.close()
        return ServerRefused(f"beanstalkd at {self.place} refused a call: {type(error).__name__.removesuffix('Error')}")

    def use(self, client: Client, queue: str) -> None:
        if self._using != queue:
            client.use(queue)
            self._using = queue

    def watch(self, client: Client, queues: tuple[str, ...]) -> None:
        """Watch exactly these tubes."""
        if self.watched == queues:
            return
        for queue in queues:
            if queue not in self.watched:
                client.watch(queue)
        for queue in self.watched:
            if queue not in queues:
                client.ignore(queue)
        self.watched = queues

    # -- what greenstalk lacks: a command whose reply is read later, with that of the next one

    def write(self, command: bytes) -> None:
        assert self._sock is not None
        self._sock.sendall(command)

    def line(self) -> bytes:
        unread = self._unread
        while (end := unread.find(b"\r\n")) < 0:
            if len(unread) > LINE:
                raise ValueError("a line of beanstalkd is shorter")
            unread = self._unread = unread + self._read()
        self._unread = unread[end + 2 :]
        return unread[:end]

    def body(self, size: int) -> bytes:
        unread = self._unread
        if len(unread) < size + 2:
            parts, missing = [unread], size + 2 - len(unread)
            while missing > 0:
                parts.append(self._read())
                missing -= len(parts[-1])
            unread = b"".join(parts)
        self._unread = unread[size + 2 :]
        return unread[:size]

    def _read(self) -> bytes:
        assert self._sock is not None
        received = self._sock.recv(65536)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        return received

    def inserted(self) -> QdError | None:
        """Read the reply to "put": None, or why the job was not accepted."""
        word, *numbers = self.line().split()
        if word == b"INSERTED":
            return None
        if word not in REFUSALS:
            raise greenstalk.UnknownResponseError(word, numbers)
        return self.refused(REFUSALS[word](numbers))

    def reserved(self) -> ReservedJob | None:
        """Read the reply to "reserve-with-timeout 0": a job of a watched tube, or None if there is none."""
        word, *numbers = self.line().split()
        if word == b"RESERVED":
            number, size = numbers
            return int(number), self.body(int(size))
        if word in (b"TIMED_OUT", b"DEADLINE_SOON"):
            return None
        raise greenstalk.UnknownResponseError(word, numbers)

    def stats_of(self, number: int) -> bytes:
        """The text of stats-job. Raises NotFoundError."""
        self.write(b"stats-job %d\r\n" % number)
        word, *numbers = self.line().split()
        if word == b"NOT_FOUND":
            raise greenstalk.NotFoundError
        if word != b"OK":
            raise greenstalk.UnknownResponseError(word, numbers)
        return self.body(int(numbers[0]))

    def reserve(self, client: Client, seconds: float, wake: int) -> ReservedJob | None:
        """A job of a watched tube. None if none came in time or `wake` became readable; in the second case the connection is
        closed, since a job may be on its way."""
        assert self._sock is not None
        sock = self._sock
        whole = math.ceil(seconds)
        # The server ends a wait of whole seconds, and its answer may take `timeout` more; any other wait is ended here.
        sock.seconds, sock.wake = (self.timeout if whole == seconds else 0.0) + seconds, wake
        try:
            job = client.reserve(timeout=whole)
            return job.id, job.body
        except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
            return None
        except Woken:
            self.close()
            return None
        except TimeoutError:
            if whole == seconds:
                raise
            self.close()
            return None
        finally:
            sock.seconds, sock.wake = None, -1

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        if self._sock is None:
            return
        if identity(self._sock.fileno()) == self._file:
            self._sock.settimeout(answer)
        else:
            self.close()

    def close(self) -> None:
        client, sock, self._client, self._sock = self._client, self._sock, None, None
        if client is None or sock is None:
            return
        if identity(sock.fileno()) != self._file:
            sock.detach()  # a job has closed it, and its number may be another file's now
        with suppress(OSError):
            client.close()


def reason(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
