"""One connection to a beanstalkd, by greenstalk, on a socket that waits for no longer than it is told and hears a wake.

Whatever greenstalk or the socket raises comes out as one of qd's errors. A connection that broke is closed; what it had
reserved is ready again over there.
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
Handed = tuple[int, bytes]  # a job that was reserved: its number and its body
NAMED = 10.0  # seconds that a name server may take
REFUSALS: dict[bytes, type[greenstalk.BeanstalkdError]] = {
    b"JOB_TOO_BIG": greenstalk.JobTooBigError,
    b"DRAINING": greenstalk.DrainingError,
    b"OUT_OF_MEMORY": greenstalk.OutOfMemoryError,
    b"BURIED": greenstalk.BuriedError,
}
LINE = 1 << 12  # bytes that the first line of a reply has at most


class Woken(Exception):
    """The descriptor that a wait was to hear of is readable."""


class BoundedSocket(socket.socket):
    """seconds: how long a read waits for bytes, None: the timeout of the socket. wake: a descriptor that ends the wait of
    `seconds` when it is readable, -1: none."""

    seconds: float | None = None
    wake = -1

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if self.seconds is None:
            return super().recv_into(buffer, nbytes, flags)
        until = time.monotonic() + self.seconds
        while True:
            came = ready_of((self.fileno(), self.wake), until - time.monotonic())
            if self.fileno() in came:
                return super().recv_into(buffer, nbytes, flags)
            if came:
                raise Woken
            if time.monotonic() >= until:
                raise TimeoutError("no answer in time")


class Said:
    """See Wire.said. Nothing of one `with` is kept in it: it stands for all of a wire's."""

    __slots__ = ("_wire",)

    def __init__(self, wire: BeanstalkdConnection) -> None:
        self._wire = wire

    def __enter__(self) -> Client:
        return self._wire.client()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            told = self._wire.wrong(error)
            if told is not error:
                raise told from None
        elif self._wire.about is not None:
            self._wire.about(0.0)


class BeanstalkdConnection(Patience):
    """Connects on first use. After ConnectionLost it is closed, and the next call connects anew. life: of the connection
    that is there; what an earlier one had reserved is not reserved any more."""

    def __init__(self, url: str) -> None:
        self.target = BeanstalkdUrl(url)
        self.connect_timeout = self.timeout = 5.0
        self.life = 0
        self._client: Client | None = None
        self._sock: BoundedSocket | None = None
        self._heard = b""  # of replies that greenstalk does not read; between two replies it has nothing left, either
        self._file: Identity | None = None  # the socket's: a job may close it
        self._using = "default"
        self.watched: tuple[str, ...] = ("default",)  # tubes, by the connection that is there
        self._said = Said(self)

    @property
    def place(self) -> str:
        return self.target.place

    def client(self) -> Client:
        if self._client is None:
            if self.about is not None:
                self.about(NAMED)
            try:
                plain = socket.create_connection((self.target.host, self.target.port), self.connect_timeout)
            except OSError as error:
                raise Unreachable(f"beanstalkd at {self.place} does not answer: {reason(error)}") from None
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._sock = BoundedSocket(plain.family, plain.type, plain.proto, plain.detach())
            self._sock.settimeout(self.timeout)  # for what is written
            self._file = identity(self._sock.fileno())
            self._client = greenstalk.Client(self._sock, encoding=None)
            self._heard = b""
            self._using, self.watched = "default", ("default",)
            self.life += 1
        return self._client

    def said(self) -> Said:
        """A client, and what goes wrong with it as errors of ours; NotFoundError, TimedOutError and DeadlineSoonError are
        answers."""
        return self._said

    def wrong(self, error: BaseException) -> BaseException:
        """What is raised in its place."""
        if isinstance(
            error, (greenstalk.NotFoundError, greenstalk.TimedOutError, greenstalk.DeadlineSoonError, QdError)
        ):
            return error
        if isinstance(error, greenstalk.BeanstalkdError):
            return self.refused(error)
        self.close()
        if isinstance(error, OSError):
            if self.about is not None:  # whoever gave up an answer is alive
                self.about(0.0)
            return ConnectionLost(f"the connection to beanstalkd at {self.place} broke: {reason(error)}")
        if isinstance(error, (greenstalk.UnknownResponseError, AssertionError, ValueError, IndexError)):
            return ConnectionLost(
                f"the server at {self.place} answers what no beanstalkd answers: does the url name another program's port?"
            )
        return error  # torn apart in the middle of a reply

    def refused(self, error: greenstalk.BeanstalkdError) -> QdError:
        """In words, what the server does not do."""
        match error:
            case greenstalk.JobTooBigError():
                return TooLarge(
                    f"beanstalkd at {self.place} takes no job of this size: start it with -z MORE (65535 bytes without), or "
                    "keep what is large elsewhere and send where it is"
                )
            case greenstalk.DrainingError():
                return ServerBusy(f"beanstalkd at {self.place} is draining (USR1) and takes no new jobs")
            case greenstalk.OutOfMemoryError():
                return ServerBusy(f"beanstalkd at {self.place} is out of memory and takes no new jobs")
            case greenstalk.BuriedError():
                return ServerBusy(f"beanstalkd at {self.place} is out of memory and has buried what it was given")
        self.close()
        return ServerRefused(f"beanstalkd at {self.place} refused a call: {type(error).__name__.removesuffix('Error')}")

    def use(self, client: Client, queue: str) -> None:
        if self._using != queue:
            client.use(queue)
            self._using = queue

    def watch(self, client: Client, queues: tuple[str, ...]) -> None:
        """These and no others."""
        if self.watched == queues:
            return
        for queue in queues:
            if queue not in self.watched:
                client.watch(queue)
        for queue in self.watched:
            if queue not in queues:
                client.ignore(queue)
        self.watched = queues

    # What greenstalk cannot: a command whose reply is read later, with that of the next one.

    def write(self, command: bytes) -> None:
        assert self._sock is not None
        self._sock.sendall(command)

    def line(self) -> bytes:
        heard = self._heard
        while (end := heard.find(b"\r\n")) < 0:
            if len(heard) > LINE:
                raise ValueError("no line of a beanstalkd is so long")
            heard = self._heard = heard + self._more()
        self._heard = heard[end + 2 :]
        return heard[:end]

    def body(self, size: int) -> bytes:
        heard = self._heard
        if len(heard) < size + 2:
            parts, missing = [heard], size + 2 - len(heard)
            while missing > 0:
                parts.append(self._more())
                missing -= len(parts[-1])
            heard = b"".join(parts)
        self._heard = heard[size + 2 :]
        return heard[:size]

    def _more(self) -> bytes:
        assert self._sock is not None
        came = self._sock.recv(65536)
        if not came:
            raise ConnectionResetError("the server closed the connection")
        return came

    def inserted(self) -> QdError | None:
        """What a "put" has come to."""
        word, *numbers = self.line().split()
        if word == b"INSERTED":
            return None
        if word not in REFUSALS:
            raise greenstalk.UnknownResponseError(word, numbers)
        return self.refused(REFUSALS[word](numbers))

    def reserved(self) -> Handed | None:
        """What "reserve-with-timeout 0" has given: a job of what is watched, None: there is none."""
        word, *numbers = self.line().split()
        if word == b"RESERVED":
            number, size = numbers
            return int(number), self.body(int(size))
        if word in (b"TIMED_OUT", b"DEADLINE_SOON"):
            return None
        raise greenstalk.UnknownResponseError(word, numbers)

    def stats_of(self, number: int) -> bytes:
        """What stats-job says, as text. Raises NotFoundError."""
        self.write(b"stats-job %d\r\n" % number)
        word, *numbers = self.line().split()
        if word == b"NOT_FOUND":
            raise greenstalk.NotFoundError
        if word != b"OK":
            raise greenstalk.UnknownResponseError(word, numbers)
        return self.body(int(numbers[0]))

    def reserve(self, client: Client, seconds: float, wake: int) -> Handed | None:
        """A job of what is watched. None: none came in time, or before `wake` was readable: then the connection is given up,
        and with it what was just coming."""
        assert self._sock is not None
        sock = self._sock
        whole = math.ceil(seconds)
        # A wait of whole seconds is ended by the server, whose answer may take `timeout` on top; any other is ended here.
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
            sock.detach()  # a job has closed it, and its number is another file's by now
        with suppress(OSError):
            client.close()


def reason(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
