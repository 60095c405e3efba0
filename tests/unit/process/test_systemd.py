"""qd.process.systemd against a datagram socket that acts as systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from qd.process.systemd import Notifier, strip


class Listener:
    """systemd's end of the socket: one dict per datagram."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def next(self) -> dict[str, str] | None:
        try:
            text = self.socket.recv(65536).decode()
        except BlockingIOError:
            return None
        return dict(line.split("=", 1) for line in text.split("\n"))


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[tuple[Listener, Notifier]]:
    path = str(tmp_path / "n")
    heard = Listener(path)
    yield heard, Notifier({"NOTIFY_SOCKET": path})
    heard.socket.close()


def test_each_call_is_one_datagram(listener: tuple[Listener, Notifier]) -> None:
    heard, notifier = listener
    assert notifier.ready("4 workers")
    assert heard.next() == {"READY": "1", "STATUS": "4 workers"}
    assert notifier.stopping()
    assert heard.next() == {"STOPPING": "1"}
    assert notifier.status("2 busy")
    assert heard.next() == {"STATUS": "2 busy"}
    assert notifier.watchdog()
    assert heard.next() == {"WATCHDOG": "1"}
    assert notifier.extend(2.5)
    assert heard.next() == {"EXTEND_TIMEOUT_USEC": "2500000"}
    assert heard.next() is None


def test_reloading_includes_the_timestamp(listener: tuple[Listener, Notifier]) -> None:
    heard, notifier = listener
    assert notifier.reloading()
    message = heard.next()
    assert message is not None
    assert message["RELOADING"] == "1"
    assert int(message["MONOTONIC_USEC"]) > 0


def test_a_status_is_one_short_line(listener: tuple[Listener, Notifier]) -> None:
    heard, notifier = listener
    assert notifier.status("two\nREADY=1 lines " + "x" * 10_000)
    message = heard.next()
    assert message is not None
    assert list(message) == ["STATUS"]
    assert message["STATUS"].startswith("two READY=1 lines xx")
    assert len(message["STATUS"]) <= 500


def test_an_empty_status_sends_nothing(listener: tuple[Listener, Notifier]) -> None:
    heard, notifier = listener
    assert not notifier.status("")
    assert heard.next() is None


def test_invalid_utf8_is_sent_anyway(listener: tuple[Listener, Notifier]) -> None:
    heard, notifier = listener
    assert notifier.status("caf\udce9 pool")
    assert heard.next() == {"STATUS": "caf? pool"}


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="abstract sockets are Linux's")
def test_an_abstract_socket_works() -> None:
    heard = Listener(f"\0qd-test-{os.getpid()}")
    try:
        assert Notifier({"NOTIFY_SOCKET": f"@qd-test-{os.getpid()}"}).ready()
        assert heard.next() == {"READY": "1"}
    finally:
        heard.socket.close()


def test_a_full_queue_neither_blocks_nor_loses_the_newest_of_each(listener: tuple[Listener, Notifier]) -> None:
    heard, notifier = listener
    while notifier.status("full"):
        pass
    assert not notifier.reloading()
    assert not notifier.ready("first")
    assert not notifier.status("last")
    assert not notifier.watchdog()
    while heard.next():
        pass
    assert notifier.extend(1)
    message = heard.next()
    assert message is not None
    assert "RELOADING" not in message  # the state after the message, so reloading has ended
    assert (message["READY"], message["STATUS"], message["WATCHDOG"], message["EXTEND_TIMEOUT_USEC"]) == (
        "1",
        "last",
        "1",
        "1000000",
    )
    assert notifier.status("again")
    assert heard.next() == {"STATUS": "again"}


@pytest.mark.parametrize("address", ["", "@", "relative", "vsock:2:1234", "/nowhere/at/all", "/" + "x" * 300, "/a\0b"])
def test_a_missing_listener_is_no_error(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address})
    assert not notifier.ready()
    assert not notifier.watchdog()


def test_without_variables_nothing_is_sent() -> None:
    notifier = Notifier({})
    assert notifier.watchdog_interval is None
    assert not notifier.ready()


@pytest.mark.parametrize(
    ("usec", "pid", "interval"),
    [
        ("30000000", "", 15.0),
        pytest.param("30000000", str(os.getpid()), 15.0, id="this-process"),  # no pid in a name: xdist compares them
        ("30000000", "1", None),  # systemd watches another process
        ("0", "", None),
        ("-1", "", None),
        ("soon", "", None),
        ("30000000", "me", None),
    ],
)
def test_the_watchdog_interval_is_half_of_the_limit(usec: str, pid: str, interval: float | None) -> None:
    assert Notifier({"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}).watchdog_interval == interval


def test_children_do_not_inherit_the_variables_of_systemd() -> None:
    environ = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    strip(environ)
    strip(environ)
    assert environ == {"PATH": "/bin"}


def test_sending_leaves_no_descriptor_open(listener: tuple[Listener, Notifier]) -> None:
    _, notifier = listener
    with open(os.devnull) as before:
        first = before.fileno()
    notifier.status("x")
    with open(os.devnull) as after:
        assert after.fileno() == first
