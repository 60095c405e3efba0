"""How master and children talk beside signals: JSON, one message a datagram upwards, one order a line downwards.

Upwards (`Voice`, one socket for all children): a Message. Downwards (`Orders`, a stream a child): what to do; its end means
leave. The master's side never blocks: what does not fit is dropped, and the scoreboard still says it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

Order = dict[str, Any]
LARGEST = 200_000  # bytes of one message; a longer one is not heard


class Message(msgspec.Struct, tag_field="kind", tag=str.lower):
    """What a child reports to its master."""


class Imported(Message):
    """The app's import has succeeded. settings: as the import has completed them, JSON. preload: workers can be forked from
    this process; warnings say what stands against it."""

    code: int
    jobs: int
    entries: int
    unserved: Mapping[str, Sequence[str]]
    limits: Mapping[str, str]
    settings: str
    preload: bool
    warnings: list[str]


class ChildMessage(Message):
    """About the child of this slot and generation."""

    slot: int
    generation: int


class Born(ChildMessage):
    """The template has forked it."""

    pid: int


class Unborn(ChildMessage):
    """The template could not fork it."""

    error: str


class Ready(ChildMessage):
    """It hears signals from now on. With it comes the descriptor of the file for its stacks, where there is one."""


class Lost(ChildMessage):
    """The lease of its job of this turn is lost."""

    turn: int


class Cancel(ChildMessage):
    """Its job of this turn was canceled."""

    turn: int


class Restart(Message):
    """Somebody has called `qd restart`. at: when, in monotonic ns."""

    rolling: bool
    at: int = 0


class Changed(Message):
    """A file of the app has changed (--reload)."""

    file: str
    code: int


AnyMessage = Imported | Born | Unborn | Ready | Restart | Lost | Cancel | Changed


class MessageSender:
    """The children's end of the socket for messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: AnyMessage, fd: int | None = None) -> None:
        """Send it, wait while the master's buffer is full. A master that is gone hears nothing, and is no error."""
        data = json.dumps(msgspec.to_builtins(message)).encode()  # msgspec's own JSON refuses paths that are not UTF-8
        with contextlib.suppress(OSError):
            if fd is None:
                self.sock.send(data)
            else:
                socket.send_fds(self.sock, [data], [fd])


class MessageReceiver:
    """The master's end."""

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
        """All messages that have come, each with the descriptor that came with it, which the caller closes.

        Args:
            reject: Called with what is wrong about a malformed message, which is dropped.
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
    """The master's end of a child's stream."""

    def __init__(self) -> None:
        self.sock, self.child_end = socket.socketpair()
        self.sock.setblocking(False)

    def send(self, **fields: Any) -> bool:
        """False: it did not fit, or the child is gone."""
        data = json.dumps(fields).encode() + b"\n"
        try:
            return self.sock.send(data) == len(data)
        except OSError:
            return False

    def close(self) -> None:
        self.sock.close()

    def dismiss(self) -> None:
        """Tell the child to leave in good order. (A line that only ends says that the master is gone.)"""
        self.send(leave=True)
        self.close()


class OrderReader:
    """A child's end of its stream."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.ended, self.dismissed = sock, False, False
        self._rest = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self) -> list[Order]:
        """What has come, when readable. `ended` is set when the master has closed it or is gone."""
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        orders = [json.loads(line) for line in lines if line]
        self.dismissed = self.dismissed or any("leave" in order for order in orders)
        return orders
