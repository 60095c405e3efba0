"""A TCP proxy in front of a Redis server that damages replies, cuts them at any byte, swallows them, goes silent, or holds
a request back."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import hiredis

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST
Action = Literal["reset", "close", "swallow", "hold"]


@dataclass
class Fault:
    """What is done to the first command that has `needle` in it, once, on whichever connection.

    reset, close: end the connection after `byte` bytes of its reply, by RST or by FIN.
    swallow: the server runs it; its reply and all that follows reaches nobody, and no side is told.
    hold: it stays on the way, all that follows on that connection with it, until let_go(); no side is told.
    """

    needle: bytes
    action: Action
    byte: int = 0
    met: threading.Event = field(default_factory=threading.Event)  # the command has come
    done: threading.Event = field(default_factory=threading.Event)  # the fault has happened, or there was no such byte
    whole: bool = False  # there was no such byte: the reply went through
    _go: threading.Event = field(default_factory=threading.Event)

    def let_go(self) -> None:
        self._go.set()

    @property
    def held(self) -> bool:
        return self.action == "hold" and not self._go.is_set()


class Proxy:
    """`with Proxy(path_of_a_unix_socket) as proxy`: reach the server at proxy.url. All is passed on until a fault is set.

    cut() and on() happen once; silence() and refuse() hold until heal().
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections = 0  # accepted so far
        self.cutting: list[int] = []  # replies to pass on before, bytes of the next to pass on
        self.silent = self.refusing = False
        self.lag = 0.0  # seconds that each answer comes late
        self.over = threading.Event()
        self._fault: Fault | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, *, reply: int = 0, byte: int = 0) -> None:
        """Reset the connection after `byte` bytes of the reply with this number, 0 being the next one."""
        self.cutting = [reply, byte]

    def on(self, needle: str, action: Action, byte: int = 0) -> Fault:
        self._fault = Fault(needle.encode(), action, byte)
        return self._fault

    def silence(self) -> None:
        """Pass on nothing any more, neither way, and keep all connections open: a firewall that has forgotten them."""
        self.silent = True

    def refuse(self) -> None:
        """End each new connection at once."""
        self.refusing = True

    def heal(self) -> None:
        self.cutting, self.silent, self.refusing = [], False, False

    def taken(self, command: list[bytes]) -> Fault | None:
        """The fault, when it is meant for this command."""
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
        self.listener.close()  # when nobody selects on it any more

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
    """One connection and what has become of it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, socket.socket(socket.AF_UNIX)
        self.asked, self.told = hiredis.Reader(), hiredis.Reader()
        self.faults: deque[Fault | None] = deque()  # of the commands whose replies are still to come
        self.passed = 0  # bytes of the reply that is under way
        self.deaf = False  # what the server says reaches nobody
        self.back: tuple[Fault, bytearray] | None = None  # what is held back

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
                        ends = [self.server]  # the server is not told
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
        """Pass on replies. False: this connection ends here."""
        for at in range(len(data)):
            if not self._may_pass():
                self._pass(data[:at])
                return self._strike()
            self.told.feed(data[at : at + 1])
            self.passed += 1
            if self.told.gets() is not False:
                self._reply_ends()
        self._pass(data)
        return True

    def _pass(self, data: bytes) -> None:
        self.proxy.over.wait(self.proxy.lag)
        if not self.deaf:
            self.client.sendall(data)

    def _may_pass(self) -> bool:
        """Whether the next byte of the reply that is under way goes through."""
        cutting, fault = self.proxy.cutting, self.faults[0] if self.faults else None
        if cutting and cutting[0] == 0 and self.passed >= cutting[1]:
            return False
        return fault is None or self.deaf or self.passed < fault.byte

    def _strike(self) -> bool:
        """The fault's moment has come. False: this connection ends here."""
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
