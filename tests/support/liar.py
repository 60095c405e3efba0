"""A TCP server that is no Redis: `answer` talks on each connection, in a thread of its own, until it returns."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

TIME = b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"  # what Redis answers to TIME, with which a connection begins


class Liar:
    """`with Liar(answer) as liar: ... liar.url`. A client that hangs up ends its answer."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._sock.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Liar:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._sock.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            self._answer(client)


def always(reply: bytes) -> Callable[[socket.socket], None]:
    """That reply to every command, whatever it is."""

    def answer(client: socket.socket) -> None:
        while data := client.recv(1 << 16):
            commands = sum(line.startswith(b"*") for line in data.split(b"\r\n"))
            client.sendall(reply * commands)

    return answer


def in_parts(head: bytes, part: bytes, count: int, pause: float, tail: bytes = b"") -> Callable[[socket.socket], None]:
    """Greets as Redis does; then, to anything: `head`, then `count` times `part`, `pause` seconds before each; `tail`."""

    def answer(client: socket.socket) -> None:
        gone = threading.Event()
        client.recv(1 << 16)
        client.sendall(TIME)
        client.recv(1 << 16)
        client.sendall(head)
        for _ in range(count):
            gone.wait(pause)
            client.sendall(part)
        client.sendall(tail)
        client.recv(1)

    return answer
