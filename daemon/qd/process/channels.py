"""Messages between the master and its children, as JSON. They complement signals.

    child  -> master   MessageSender -> MessageReceiver   one datagram socket for all children, one Message per datagram
    master -> child    OrderPipe -> OrderReader           one stream per child, one order per line; its end means leave
    worker -> keeper   Waker                              a byte: jobs are held ahead from now on

The master never blocks: a message that does not fit is dropped, and the scoreboard still has the facts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from qd.process.descriptors import identity

Order = dict[str, Any]
LARGEST = 200_000  # bytes of one message; a longer one is dropped


class Message(msgspec.Struct, tag_field="kind", tag=str.lower):
    """A report of a child to its master."""


class Imported(Message):
    """The app's import has succeeded. settings: JSON, completed by the import. exclusive: names of such jobs. preload:
    workers can be forked from this process; if not, warnings has the reasons."""

    code: int
    jobs: int
    entries: int
    unserved: Mapping[str, Sequence[str]]
    exclusive: list[str]
    limits: Mapping[str, str]
    settings: str
    preload: bool
    warnings: list[str]


class ImportFailed(Message):
    """The app's import has failed. error: in one line."""

    code: int
    error: str


class ChildMessage(Message):
    """About the child of this slot and generation."""

    slot: int
    generation: int


class Born(ChildMessage):
    """The template has forked the child."""

    pid: int


class Unborn(ChildMessage):
    """The template could not fork the child."""

    error: str


class Ready(ChildMessage):
    """The child handles signals from now on. The descriptor of its stack file is attached if it has one."""


class Lost(ChildMessage):
    """The lease of the child's job of this turn is lost."""

    turn: int


class Cancel(ChildMessage):
    """The child's job of this turn was canceled."""

    turn: int


class Restart(Message):
    """`qd restart` was called, or `by`. at: when, in monotonic ns."""

    rolling: bool
    at: int = 0
    by: str = "qd restart"


class Resize(Message):
    """`qd scale` was called."""

    workers: int


class Changed(Message):
    """A file of the app has changed (--reload)."""

    file: str
    code: int


AnyMessage = Imported | ImportFailed | Born | Unborn | Ready | Restart | Resize | Lost | Cancel | Changed


class MessageSender:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: AnyMessage, fd: int | None = None) -> None:
        """Send the message; wait while the master's buffer is full. It is no error if the master has ended."""
        data = json.dumps(msgspec.to_builtins(message)).encode()  # msgspec's own JSON refuses paths that are not UTF-8
        with contextlib.suppress(OSError):
            if fd is None:
                self.sock.send(data)
            else:
                socket.send_fds(self.sock, [data], [fd])


class MessageReceiver:
    def __init__(self) -> None:
        self.sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        for end in (self.sock, other):  # macOS would take 2,048 bytes
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST)
        self.sender = MessageSender(other)

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self, reject: Callable[[Exception], None]) -> Iterator[tuple[AnyMessage, int | None]]:
        """Yield each message that has arrived, with the attached descriptor, which the caller closes.

        Args:
            reject: Called with the error of each malformed message. The message is dropped.
        """
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, LARGEST + 4096, 1)
            except OSError:
                return
            fd = fds[0] if fds else None
            try:
                message = msgspec.convert(json.loads(data), AnyMessage)
            except (ValueError, msgspec.ValidationError) as error:
                if fd is not None:
                    os.close(fd)
                reject(error)
                continue
            yield message, fd


class OrderPipe:
    def __init__(self) -> None:
        self.sock, self.child_end = socket.socketpair()
        self.sock.setblocking(False)

    def send(self, **fields: Any) -> bool:
        """Send an order. Returns False if it did not fit or the child has ended."""
        data = json.dumps(fields).encode() + b"\n"
        try:
            return self.sock.send(data) == len(data)
        except OSError:
            return False

    def close(self) -> None:
        self.sock.close()

    def dismiss(self) -> None:
        """Order the child to leave. (A stream that ends without this order means that the master was killed.)"""
        self.send(leave=True)
        self.close()


class Waker:
    """A byte from any child to the keeper: look at the scoreboard now. Made by the master before its first fork."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        for end in (self.fd, self._write):
            os.set_blocking(end, False)
        self._pipe = identity(self._write)

    def wake(self) -> None:
        if identity(self._write) == self._pipe:  # else a job has closed it, and the number may belong to another file
            with contextlib.suppress(OSError):  # it is full: the keeper will wake
                os.write(self._write, b"!")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.fd, 4096)


class OrderReader:
    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.ended, self.dismissed = sock, False, False
        self._rest = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self) -> list[Order]:
        """The orders that have arrived; call it when the stream is readable. Sets `ended` when the stream has ended."""
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        orders = [json.loads(line) for line in lines if line]
        self.dismissed = self.dismissed or any("leave" in order for order in orders)
        return orders
