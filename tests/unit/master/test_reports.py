"""qd.process.channels and qd.master.reports: what children report, how the master hears it, and what it rejects."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qd.log import Log
from qd.master.children import Children
from qd.master.reports import Reports
from qd.process import fork
from qd.process.channels import (
    AnyMessage,
    Born,
    Cancel,
    Changed,
    Imported,
    Lost,
    MessageReceiver,
    Ready,
    Restart,
    Unborn,
)
from qd.process.scoreboard import Scoreboard, W

EACH: list[AnyMessage] = [
    Imported(1, 2, 3, {"mail": ["a"]}, ["alone"], {"lease": "x"}, "{}", True, ["warns"]),
    Born(slot=3, generation=1, pid=7),
    Unborn(slot=3, generation=1, error="no process"),
    Ready(slot=3, generation=1),
    Restart(rolling=True, at=5),
    Lost(slot=3, generation=1, turn=9),
    Cancel(slot=3, generation=1, turn=9),
    Changed(file=os.fsdecode(b"/app/\xff.py"), code=1),
]
MALFORMED = {
    "no JSON": b"\xff{",
    "no object": b"[]",
    "no kind": b"{}",
    "an unknown kind": b'{"kind":"gone"}',
    "a field that is missing": b'{"kind":"ready","slot":0}',
    "a field of another type": b'{"kind":"ready","slot":"0","generation":1}',
}


@pytest.fixture
def receiver() -> Iterator[MessageReceiver]:
    found = MessageReceiver()
    yield found
    for end in (found.sock, found.sender.sock):
        end.close()


class Master:
    """Reports with their own state; `lines`: what was logged."""

    def __init__(self, receiver: MessageReceiver) -> None:
        self.lines = list[str]()
        log = Log("master", write=lambda line: self.lines.append(line.decode()))
        self.children = Children(Scoreboard())
        state: Any = SimpleNamespace(receiver=receiver, log=log, children=self.children, stopping=None, paused=False)
        spawner: Any = SimpleNamespace(born=lambda worker: None)
        reload: Any = SimpleNamespace()
        self.reports = Reports(state, spawner, reload, lambda _: None)


@pytest.fixture
def master(receiver: MessageReceiver) -> Master:
    return Master(receiver)


def raises(error: Exception) -> None:
    raise error


def test_each_message_arrives_as_it_was_sent(receiver: MessageReceiver) -> None:
    for message in EACH:
        receiver.sender.send(message)
    assert [message for message, _ in receiver.read(raises)] == EACH


@pytest.mark.parametrize("data", MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_message_is_rejected_with_one_line_and_the_next_is_read(
    receiver: MessageReceiver, master: Master, data: bytes
) -> None:
    worker = master.children.take(0, 1, 0.0)
    receiver.sender.sock.send(data)
    receiver.sender.send(Ready(slot=0, generation=worker.generation))
    master.reports.state.boots = {worker.role: SimpleNamespace(ready=lambda: None, missing=[])}  # type: ignore[dict-item]
    master.reports.handle()
    assert worker.ready
    (line,) = master.lines
    assert "master.message_rejected" in line


def test_an_error_of_the_master_itself_is_raised(
    receiver: MessageReceiver, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(master.children, "found", broken)
    receiver.sender.send(Lost(slot=0, generation=1, turn=1))
    with pytest.raises(TypeError, match="a bug"):
        master.reports.handle()
    assert master.lines == []


NOT_KEPT = {
    "of a message that has none": b'{"kind":"lost","slot":0,"generation":1,"turn":1}',
    "of a worker that is gone": b'{"kind":"ready","slot":0,"generation":1}',
    "of a malformed message": b"{}",
}


@pytest.mark.parametrize("data", NOT_KEPT.values(), ids=list(NOT_KEPT))
def test_an_unneeded_descriptor_is_closed(receiver: MessageReceiver, master: Master, data: bytes) -> None:
    read, write = os.pipe()
    socket.send_fds(receiver.sender.sock, [data], [write])
    os.close(write)
    master.reports.handle()
    os.set_blocking(read, False)
    assert os.read(read, 1) == b"", "the other end is still open"
    os.close(read)


def test_a_worker_abandoned_before_its_birth_is_killed(
    receiver: MessageReceiver, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = list[int]()
    monkeypatch.setattr(fork, "kill_group", killed.append)
    master.children.take(0, 1, 0.0)
    master.children.forget_unborn(1e9)
    later = master.children.take(0, 1, 0.0)
    receiver.sender.send(Born(slot=0, generation=1, pid=77))
    receiver.sender.send(Born(slot=0, generation=2, pid=78))
    master.reports.handle()
    assert (killed, later.slot[W.PID]) == ([77], 78)
