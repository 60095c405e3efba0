"""What a worker does with emitted events: collect, send together, keep while the server is away, drop, end an attempt."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.drivers.base import Connector
from qd.errors import ConnectionLost, NoAnswer, NotInJob, ServerRefused
from qd.log import Log
from qd.worker import emitter
from qd.worker.connection import Checkpoints
from qd.worker.emitter import MOST_EVENTS, Emitter
from tests.support.waiting import eventually


class Server:
    """Takes calls of `emit`; `answer` may raise or replace its replies."""

    def __init__(self, answer: Callable[[list[Any]], list[Any]]) -> None:
        self.answer, self.calls, self.jobs = answer, list[list[tuple[str, list[Any]]]](), self

    def emit(self, some: list[tuple[str, list[Any]]]) -> list[Any]:
        self.calls.append(some)
        return self.answer(some)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        yield

    def sent(self, id: str) -> list[tuple[int, bytes]]:
        """(position, JSON) of each event in the calls."""
        words = [args[5:] for call in self.calls for name, args in call if name == id]
        return [(each[at], each[at + 1]) for each in words for at in range(0, len(each), 2)]


def made(
    answer: Callable[[list[Any]], list[Any]] = lambda some: [b"7"] * len(some),
) -> tuple[Emitter, Server, io.StringIO]:
    server, lines = Server(answer), io.StringIO()

    def write(line: bytes) -> None:
        lines.write(line.decode())

    log = Log("worker", write=write)
    return Emitter(lambda: cast(Connector, server), log), server, lines


def add(emitter: Emitter, mark: str, *data: bytes) -> None:
    with emitter.lock:
        for each in data:
            emitter.add(mark, f"id of {mark}", None, each)


def test_events_of_all_jobs_are_sent_with_one_call():
    emitter, server, _ = made()
    with emitter.lock:
        add(emitter, "a", b"1", b"2")
        add(emitter, "b", b"3")
    eventually(lambda: server.calls)
    ((first, second),) = server.calls
    assert first == ("id of a", ["a", -1, 3600, 1000, 1 << 20, 1, b"1", 2, b"2"])
    assert second == ("id of b", ["b", -1, 3600, 1000, 1 << 20, 1, b"3"])
    eventually(lambda: emitter.attempts["a"].base == 7)
    add(emitter, "a", b"4")
    eventually(lambda: len(server.calls) == 2)
    assert server.calls[1] == [("id of a", ["a", 7, 3600, 1000, 1 << 20, 3, b"4"])]


@pytest.mark.parametrize("count", [1, 64])
def test_a_full_collection_is_sent_at_once(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emitter, "COLLECT", 3600.0)
    one, server, _ = made()
    add(one, "a", *[b"1"] * count)
    if count == 1:  # the end of the attempt sends it
        assert one.end("a").id == "id of a"
        assert one.attempts == {}
    eventually(lambda: len(server.sent("id of a")) == count)


def test_what_may_have_been_sent_is_sent_again_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emitter, "AGAIN", 0.0)
    away = threading.Event()
    away.set()

    def answer(some: list[Any]) -> list[Any]:
        if away.is_set():
            raise ConnectionLost("the server is away")
        return [b"0"] * len(some)

    one, server, lines = made(answer)
    add(one, "a", b"1")
    eventually(lambda: len(server.calls) > 1)
    add(one, "a", b"2")
    with pytest.raises(NoAnswer):
        one.end("a")
    away.clear()
    eventually(lambda: not one.attempts["a"].unsent)
    assert one.end("a").count == 2
    assert server.calls[-1][0][1][5:] == [1, b"1", 2, b"2"]
    assert "dropped" not in lines.getvalue()


def test_too_many_unsent_events_are_dropped_from_the_oldest_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emitter, "AGAIN", 0.0)
    away = threading.Event()
    away.set()
    one, server, lines = made(
        lambda some: [ConnectionLost("away")] * len(some) if away.is_set() else [b"0"] * len(some)
    )
    add(one, "a", *[b"%d" % n for n in range(MOST_EVENTS + 20)])
    eventually(lambda: server.calls)
    away.clear()
    assert eventually(lambda: not one.attempts["a"].unsent)
    sent = server.sent("id of a")[-MOST_EVENTS:]
    assert sent == [(n + 1, b"%d" % n) for n in range(20, MOST_EVENTS + 20)]
    eventually(
        lambda: (
            'job.events_dropped id="id of a" count=20 reason="the server was unreachable for too long"'
            in lines.getvalue()
        )
    )


@pytest.mark.parametrize("how", ["raises", "replies"])
def test_refused_events_are_dropped_and_counted(how: str):
    def answer(some: list[Any]) -> list[Any]:
        if how == "raises":
            raise ServerRefused("OOM command not allowed")
        return [ServerRefused("OOM command not allowed")]

    one, _, lines = made(answer)
    add(one, "a", b"1", b"2", b"3")
    assert one.end("a").count == 3
    eventually(lambda: 'job.events_dropped id="id of a" count=3 reason="OOM command not allowed"' in lines.getvalue())


def test_a_stream_that_qd_did_not_write_stops_no_other_stream():
    one, _, lines = made(lambda some: [b"1e+20" if name == "id of a" else b"7" for name, _ in some])
    add(one, "a", b"1")
    add(one, "b", b"2")
    assert (one.end("a").count, one.end("b").base) == (1, 7)
    add(one, "c", b"3")
    assert one.end("c").base == 7
    assert 'job.events_dropped id="id of a" count=1 reason="the stream of its events contains what' in lines.getvalue()


def test_an_ended_job_and_a_fork_cannot_emit(monkeypatch: pytest.MonkeyPatch):
    one, server, _ = made()
    states = Checkpoints(cast(Any, server), cast(Any, None), cast(Any, None), one)
    states.begin(cast(Any, SimpleNamespace(mark="a")))
    states.emit("a", "id", None, b"1")
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 1)
        with pytest.raises(NotInJob, match=r"job\.emit\(\) was called in a process that the job has forked"):
            states.emit("a", "id", None, b"2")
    states.end()
    with pytest.raises(NotInJob, match=r"job\.emit\(\) was called after its job had ended"):
        states.emit("a", "id", None, b"3")
    assert one.end("a").count == 1


def test_a_signal_handler_may_emit_during_an_emit():
    one, server, _ = made()
    with one.lock:
        add(one, "a", b"1")
    one.end("a")
    assert server.sent("id of a") == [(1, b"1")]
