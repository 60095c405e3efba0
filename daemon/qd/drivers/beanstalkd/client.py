"""One connection to a beanstalkd: greenstalk, and commands whose reply is read later or whose wait a descriptor ends.

Errors of greenstalk and of the socket are raised as qd's. A connection that broke is closed; beanstalkd makes the jobs that
it had reserved ready again.
"""

from __future__ import annotations

import math
import socket
from contextlib import suppress
from types import TracebackType

import greenstalk

from qd.drivers.base import Patience
from qd.drivers.urls import BeanstalkdUrl
from qd.errors import ConnectionLost, QdError, ServerBusy, ServerRefused, TooLarge, Unreachable
from qd.process.descriptors import Identity, identity, ready_of

Client = greenstalk.Client[bytes]
ReservedJob = tuple[int, bytes]  # number and body
RESOLVE = 10.0  # seconds that resolving the host name may take
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
ANSWERS = (greenstalk.NotFoundError, greenstalk.TimedOutError, greenstalk.DeadlineSoonError)
LINE = 1 << 12  # bytes of the first line of a reply, at most


class BeanstalkdConnection(Patience):
    """`with connection as client:` connects on first use, and raises errors as ours. NotFoundError, TimedOutError and
    DeadlineSoonError are answers and stay as they are. After ConnectionLost the connection is closed, and the next block
    connects again. life: counts connections; jobs that an earlier one had reserved are no longer reserved."""

    def __init__(self, url: str) -> None:
        self.target = BeanstalkdUrl(url)
        self.place = self.target.place
        self.connect_timeout = self.timeout = 5.0
        self.life = 0
        self._client: Client | None = None
        self._sock: socket.socket | None = None
        self._unread = b""  # bytes of replies; greenstalk, too, buffers nothing between two replies
        self._file: Identity | None = None  # of the socket, to detect that a job has closed it
        self._using = "default"
        self.watched: tuple[str, ...] = ("default",)  # tubes

    def __enter__(self) -> Client:
        if self._client is None:
            self.report_progress(RESOLVE)
            try:
                sock = socket.create_connection((self.target.host, self.target.port), self.connect_timeout)
            except OSError as error:
                raise Unreachable(f"beanstalkd at {self.place} does not answer: {reason(error)}") from None
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.settimeout(self.timeout)
            self._sock, self._file, self._unread = sock, identity(sock.fileno()), b""
            self._client = greenstalk.Client(sock, encoding=None)
            self._using, self.watched = "default", ("default",)
            self.life += 1
        return self._client

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.report_progress()
        elif (ours := self.translated(error)) is not error:
            raise ours from None

    def translated(self, error: BaseException) -> BaseException:
        """The error to raise instead."""
        if isinstance(error, (*ANSWERS, QdError)):
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

    def reply(self, expected: bytes) -> list[bytes]:
        """The words of the next reply after `expected`. Raises greenstalk's errors."""
        word, *words = self.line().split()
        if word == expected:
            return words
        refusal = greenstalk.ERROR_RESPONSES.get(word)
        raise refusal() if refusal is not None else greenstalk.UnknownResponseError(word, words)

    def inserted(self) -> QdError | None:
        """Read the reply to "put": None, or why the job was not accepted."""
        try:
            self.reply(b"INSERTED")
        except tuple(MEANINGS) as error:
            return self.refused(error)
        return None

    def reserved(self) -> ReservedJob | None:
        """Read the reply to "reserve-with-timeout": a job of a watched tube, or None if there is none."""
        try:
            number, size = self.reply(b"RESERVED")
        except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
            return None
        return int(number), self.body(int(size))

    def stats_of(self, number: int) -> bytes:
        """The text of stats-job. Raises NotFoundError."""
        self.write(b"stats-job %d\r\n" % number)
        return self.body(int(self.reply(b"OK")[0]))

    def reserve(self, seconds: float, wake: int) -> ReservedJob | None:
        """A job of a watched tube. None if none came in time or `wake` became readable; in the second case the connection is
        closed, since a job may be on its way."""
        assert self._sock is not None
        whole, fd = math.ceil(seconds), self._sock.fileno()
        self.write(b"reserve-with-timeout %d\r\n" % whole)
        # The server ends a wait of whole seconds, and its answer may take `timeout` more; any other wait is ended here.
        ready = ready_of((fd, wake), seconds + (self.timeout if whole == seconds else 0.0))
        if fd in ready:
            return self.reserved()
        if not ready and whole == seconds:
            raise TimeoutError("no answer in time")
        self.close()
        return None

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
