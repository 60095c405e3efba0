"""A client of the tests' own, so that what qd wrote is read by something that is not qd."""

from __future__ import annotations

import socket
from typing import Any

import hiredis


class Client:
    """Connects on first use, again after an error. call() gives bytes, ints, lists or None; it raises error replies."""

    def __init__(self, path: str, timeout: float = 10.0) -> None:
        self.path, self.timeout = path, timeout
        self._sock: socket.socket | None = None
        self._reader = hiredis.Reader()

    def call(self, *args: Any) -> Any:
        try:
            self._open().sendall(hiredis.pack_command(args))
            reply = self._reply()
        except OSError:
            self.close()
            raise
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    __call__ = call

    def text(self, *args: Any) -> Any:
        """call(), with every bytes in the reply decoded."""
        return decoded(self.call(*args))

    def hash(self, key: str) -> dict[str, str]:
        flat = self.text("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def keys(self) -> list[str]:
        return sorted(self.text("KEYS", "*"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _open(self) -> socket.socket:
        if self._sock is None:
            self._sock = socket.socket(socket.AF_UNIX)
            self._sock.settimeout(self.timeout)
            self._sock.connect(self.path)
            self._reader = hiredis.Reader()
        return self._sock

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._open().recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        return reply


def decoded(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "backslashreplace")
    return [decoded(r) for r in reply] if isinstance(reply, list) else reply
