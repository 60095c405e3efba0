"""The network between qd and a server: a proxy that injects faults, a fake server, and TLS certificates."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import hiredis

from tests.support.programs import program

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST
Action = Literal["reset", "close", "swallow", "hold"]


@dataclass
class Fault:
    """A fault of the first command that contains `needle`, on any connection. It happens once.

    reset, close: end the connection after `byte` bytes of its reply, by RST or by FIN.
    swallow: the server runs it; its reply and all later ones are dropped, and both connections stay open.
    hold: it and all later commands of its connection are held until let_go(); both connections stay open.
    """

    needle: bytes
    action: Action
    byte: int = 0
    met: threading.Event = field(default_factory=threading.Event)  # the command has arrived
    done: threading.Event = field(default_factory=threading.Event)  # the fault has happened, or there was no such byte
    whole: bool = False  # there was no such byte: the reply went through
    _go: threading.Event = field(default_factory=threading.Event)

    def let_go(self) -> None:
        self._go.set()

    @property
    def held(self) -> bool:
        return self.action == "hold" and not self._go.is_set()


class Proxy:
    """`with Proxy(path_of_a_unix_socket) as proxy`: reach the server at proxy.url. All traffic passes until a fault is set.

    cut() and on() happen once; silence() and refuse() hold until heal().
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections = 0  # accepted so far
        self.cutting: list[int] = []  # replies to pass before the cut, bytes of the next one to pass
        self.silent = self.refusing = False
        self.lag = 0.0  # seconds by which each reply is delayed
        self.over = threading.Event()
        self._fault: Fault | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, *, reply: int = 0, byte: int = 0) -> None:
        """Reset the connection after `byte` bytes of the reply with this number; 0 is the next one."""
        self.cutting = [reply, byte]

    def on(self, needle: str, action: Action, byte: int = 0) -> Fault:
        self._fault = Fault(needle.encode(), action, byte)
        return self._fault

    def silence(self) -> None:
        """Drop all traffic and keep all connections open, like a firewall that has lost its state."""
        self.silent = True

    def refuse(self) -> None:
        """Close each new connection at once."""
        self.refusing = True

    def heal(self) -> None:
        self.cutting, self.silent, self.refusing = [], False, False

    def taken(self, command: list[bytes]) -> Fault | None:
        """The fault, if it applies to this command."""
        with self._lock:
            fault = self._fault
            if fault is None or not any(fault.needle in word for word in command[:2]):
                return None
            self._fault = None
        fault.met.set()
        return fault

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        self.listener.close()  # only now: no thread selects on it any more

    def _start(self, body: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=body, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                if select.select([self.listener], [], [], 0.02)[0]:
                    client, _ = self.listener.accept()
                    self.connections += 1
                    if self.refusing:
                        client.close()
                    else:
                        self._start(Link(self, client).serve)


class Link:
    """One connection and its state."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, socket.socket(socket.AF_UNIX)
        self.asked, self.replies = hiredis.Reader(), hiredis.Reader()
        self.faults: deque[Fault | None] = deque()  # of the commands whose replies are pending
        self.passed = 0  # bytes passed of the current reply
        self.deaf = False  # replies are dropped
        self.back: tuple[Fault, bytearray] | None = None  # held commands

    def serve(self) -> None:
        with self.client, self.server, contextlib.suppress(OSError):
            self.server.connect(str(self.proxy.target))
            ends = [self.client, self.server]
            while not self.proxy.over.is_set():
                self._let_go()
                for sock in select.select(ends, [], [], 0.02)[0]:
                    data = sock.recv(65536)
                    quiet = self.proxy.silent or self.deaf or self.back is not None
                    if not data and sock is self.client and quiet:
                        ends = [self.server]  # without closing the connection to the server
                    elif not data or not self._passes(sock, data):
                        return

    def _passes(self, sock: socket.socket, data: bytes) -> bool:
        if self.proxy.silent:
            return True
        return self._ask(data) if sock is self.client else self._tell(data)

    def _ask(self, data: bytes) -> bool:
        self.asked.feed(data)
        while (command := self.asked.gets()) is not False:
            fault = self.proxy.taken(command)
            self.faults.append(fault)
            if fault is not None and fault.held:
                self.back = (fault, bytearray())
        if self.back is not None:
            self.back[1].extend(data)
        elif not self.deaf:
            self.server.sendall(data)
        return True

    def _let_go(self) -> None:
        if self.back is not None and not self.back[0].held:
            fault, data = self.back
            self.back, self.deaf = None, True
            self.server.sendall(data)
            fault.done.set()

    def _tell(self, data: bytes) -> bool:
        """Pass on replies. Returns False if this connection ends here."""
        for at in range(len(data)):
            if not self._may_pass():
                self._pass(data[:at])
                return self._strike()
            self.replies.feed(data[at : at + 1])
            self.passed += 1
            if self.replies.gets() is not False:
                self._reply_ends()
        self._pass(data)
        return True

    def _pass(self, data: bytes) -> None:
        self.proxy.over.wait(self.proxy.lag)
        if not self.deaf:
            self.client.sendall(data)

    def _may_pass(self) -> bool:
        """Whether the next byte of the current reply passes."""
        cutting, fault = self.proxy.cutting, self.faults[0] if self.faults else None
        if cutting and cutting[0] == 0 and self.passed >= cutting[1]:
            return False
        return fault is None or self.deaf or self.passed < fault.byte

    def _strike(self) -> bool:
        """Make the fault happen. Returns False if this connection ends here."""
        fault = self.faults[0] if self.faults else None
        if fault is None:
            self.proxy.cutting = []
        else:
            fault.done.set()
        if fault is None or fault.action == "reset":
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.deaf = fault is not None and fault.action == "swallow"
        return self.deaf

    def _reply_ends(self) -> None:
        self.passed = 0
        if self.proxy.cutting:
            self.proxy.cutting = [self.proxy.cutting[0] - 1, self.proxy.cutting[1]] if self.proxy.cutting[0] else []
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and not fault.done.is_set():
            fault.whole = True
            fault.done.set()


TIME = b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"  # the reply to TIME, the first command of a connection


class FakeServer:
    """A TCP server that is not Redis: `with FakeServer(answer) as fake: ... fake.url`.

    `answer` serves each connection in its own thread until it returns. A client that hangs up ends it."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._sock.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> FakeServer:
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
    """Send this reply to every command."""

    def answer(client: socket.socket) -> None:
        while data := client.recv(1 << 16):
            commands = sum(line.startswith(b"*") for line in data.split(b"\r\n"))
            client.sendall(reply * commands)

    return answer


def in_parts(head: bytes, part: bytes, count: int, pause: float, tail: bytes = b"") -> Callable[[socket.socket], None]:
    """Greet as Redis does; then reply to anything with `head`, `count` times `part` (each after `pause` s), and `tail`."""

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


class Certificates:
    """A certificate authority and its certificates, made with openssl: one for a server on 127.0.0.1, one for a client.

    Files in `folder`: ca.crt, server.crt, server.key, client.crt, client.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._make("ca", "-x509", "-subj", "/CN=test authority")
        self._sign("server", "subjectAltName=IP:127.0.0.1")
        self._sign("client", "extendedKeyUsage=clientAuth")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def _make(self, name: str, *options: str) -> None:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        out = f"{name}.crt" if "-x509" in options else f"{name}.csr"
        self._openssl("req", "-new", *kind, "-keyout", self.path(f"{name}.key"), "-out", self.path(out), *options)

    def _sign(self, name: str, extension: str) -> None:
        self._make(name, "-subj", f"/CN={name}")
        (self.folder / "extension").write_text(extension)
        by = ["-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"), "-CAcreateserial", "-days", "2"]
        with_ = ["-extfile", self.path("extension"), "-out", self.path(f"{name}.crt")]
        self._openssl("x509", "-req", "-in", self.path(f"{name}.csr"), *by, *with_)

    def _openssl(self, *words: str) -> None:
        subprocess.run([program("openssl"), *words], check=True, capture_output=True)
