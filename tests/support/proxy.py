"""A bad network: a proxy in front of a server that swallows replies, cuts them at any byte, or goes silent."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from pathlib import Path

import hiredis

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


class Proxy:
    """`with Proxy(path_of_a_unix_socket) as proxy`: reach the server at proxy.url. All is passed on until a fault is set.

    A fault set by cut() happens once, on whichever connection; silence() holds until heal().
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections = 0  # accepted so far
        self._fault: tuple[int, int] | None = None  # replies to pass on before, bytes of the next to pass on
        self._silent = False
        self.lag = 0.0  # seconds that each answer comes late
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, *, reply: int = 0, byte: int = 0) -> None:
        """Reset the connection after `byte` bytes of the reply with this number, 0 being the next one."""
        self._fault = (reply, byte)

    def silence(self) -> None:
        """Pass on nothing any more, neither way, and keep all connections open: a firewall that has forgotten them."""
        self._silent = True

    def heal(self) -> None:
        self._fault, self._silent = None, False

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.listener.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _start(self, body: object, *args: object) -> None:
        thread = threading.Thread(target=body, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                if select.select([self.listener], [], [], 0.02)[0]:
                    client, _ = self.listener.accept()
                    self.connections += 1
                    self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        reader = hiredis.Reader()
        with client, server, contextlib.suppress(OSError):
            server.connect(str(self.target))
            while not self._over.is_set():
                for sock in select.select([client, server], [], [], 0.02)[0]:
                    data = sock.recv(65536)
                    if self._silent:
                        if not data:
                            return
                    elif not data:
                        return
                    elif sock is client:
                        server.sendall(data)
                    elif not self._answer(client, reader, data):
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        return

    def _answer(self, client: socket.socket, reader: hiredis.Reader, data: bytes) -> bool:
        """Pass on replies. False: the fault's moment has come."""
        start = 0
        for at in range(len(data)):
            if self._fault is not None and self._fault[0] == 0 and at - start >= self._fault[1]:
                self._fault = None
                client.sendall(data[:at])
                return False
            reader.feed(data[at : at + 1])
            if reader.gets() is not False:
                start = at + 1
                if self._fault is not None:
                    self._fault = (self._fault[0] - 1, self._fault[1]) if self._fault[0] else None
        self._over.wait(self.lag)
        client.sendall(data)
        return True
