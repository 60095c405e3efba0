"""How master and children talk beside signals: JSON, one message a datagram upwards, one a line downwards.

Upwards (`Voice`, one socket for all children): news. Downwards (`Orders`, a stream a child): what to do; its end means
leave. The master's side never blocks: what does not fit is dropped, and the scoreboard still says it. A job can find the
news socket too: the kernel tells who has sent a message, and no look takes more than MOST of them or MUCH of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

Message = dict[str, Any]
LARGEST = 200_000  # bytes of one message; a longer one is not heard
# Of one look: whoever sends without end does not keep the master from its work. More than the socket holds at any moment
# (net.unix.max_dgram_qlen, 512 by default; its buffers), so that what stood there before a look is heard in it.
MOST = 1000  # messages
MUCH = 5 * LARGEST  # bytes
NOBODY = -1  # a sender that the kernel has no pid for here: of another pid namespace
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_NAMED = hasattr(socket, "SO_PASSCRED")  # Linux


class Heard(NamedTuple):
    """A message, the descriptor that came with it, and the pid of who sent it; None where no kernel tells (macOS)."""

    message: Message
    fd: int | None
    sender: int | None


class Voice:
    """The children's end of the news socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def tell(self, kind: str, fd: int | None = None, **fields: Any) -> None:
        """Say it, wait while the master's buffer is full. A master that is gone hears nothing, and is no error."""
        data = json.dumps({"kind": kind, **fields}).encode()
        with contextlib.suppress(OSError):
            if fd is None:
                self.sock.send(data)
            else:
                socket.send_fds(self.sock, [data], [fd])


class Ear:
    """The master's end. `read` gives what has come, with a file descriptor where one was sent."""

    def __init__(self) -> None:
        self.sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        for end in (self.sock, other):  # macOS would take 2,048 bytes
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST)
        if _NAMED:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.voice = Voice(other)

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self) -> Iterator[Heard]:
        """At most MOST of them, at most MUCH. Whoever takes one closes its descriptor."""
        size = 0
        for _ in range(MOST):
            if size > MUCH:
                return
            try:
                data, ancillary, _, _ = self.sock.recvmsg(LARGEST + 4096, socket.CMSG_SPACE(12) + socket.CMSG_SPACE(4))
            except OSError:
                return
            size += len(data)
            fds, sender = taken_from(ancillary)
            try:
                message = json.loads(data)
            except (ValueError, RecursionError):
                message = None
            fd = fds.pop(0) if fds and isinstance(message, dict) else None
            for other in fds:
                os.close(other)
            if isinstance(message, dict):
                yield Heard(message, fd, sender)


def taken_from(ancillary: list[tuple[int, int, bytes]]) -> tuple[list[int], int | None]:
    """The descriptors beside a message, and the pid of its sender."""
    fds, sender = array("i"), NOBODY if _NAMED else None
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        elif _NAMED and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            sender = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0] or NOBODY
    return fds.tolist(), sender


class Orders:
    """The master's end of a child's stream."""

    def __init__(self) -> None:
        self.sock, self.child_end = socket.socketpair()
        self.sock.setblocking(False)

    def give(self, **fields: Any) -> bool:
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
        self.give(leave=True)
        self.close()


class Inbox:
    """A child's end of its stream."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.ended, self.dismissed = sock, False, False
        self._rest = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self) -> list[Message]:
        """What has come, when readable. `ended` is set when the master has closed it or is gone."""
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = [json.loads(line) for line in lines if line]
        self.dismissed = self.dismissed or any("leave" in message for message in messages)
        return messages
