"""qd.worker.connection: after a broken call the worker queries the server, and every answer counts once.

The server is a script of replies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved, reserved_of
from qd.errors import ConnectionLost, NotInJob, ServerRefused, Unreachable, WrongPassword
from qd.log import Log
from qd.payload.format import read
from qd.process import SLOTS
from qd.process.scoreboard import Scoreboard
from qd.worker.connection import LEAVES, Checkpoints, HeldJob, LaneTurns, WorkerConnection
from qd.worker.emitter import Emitter
from qd.worker.queues import Rota
from qd.worker.timeout import Alarm

MARK = "T.1.7.1"
LOG = Log("worker", write=lambda line: None)


def job(text: str = "", mark: str = MARK) -> Reserved:
    saved = f',"saved":"{text}"' if text else ""
    return Reserved("a", f'{{"job":"t","attempts":1,"rsv":"{mark}"{saved}}}'.encode(), mark, 0, 0, b"")


OLD, NEW, ANOTHER = job(), job("Nw"), job(mark="T.1.8.1")
AWAY = ConnectionLost("away")


class Scripted:
    """Returns the replies of the script in order, to any call; `asked`: the calls it got."""

    settings = ConnectionSettings("redis")

    def __init__(self, *script: object) -> None:
        self.script, self.asked = list(script), list[tuple[str, bytes]]()

    def _next(self, call: str, member: bytes = b"") -> Any:
        self.asked.append((call, member))
        reply = self.script.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def held(self, queues: Sequence[str]) -> Any:
        return self._next("held")

    def ack(self, done: Reserved) -> Any:
        return self._next("ack", done.member)

    def checkpoint(self, held: Reserved, member: bytes) -> Any:
        return self._next("checkpoint", member)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("unsure", "script", "answer", "acked"),
    [
        (False, [True], True, [OLD]),
        (False, [False], False, [OLD]),
        (False, [AWAY, None], None, [OLD]),
        (False, [AWAY, ANOTHER], None, [OLD]),
        (False, [AWAY, OLD, True], True, [OLD, OLD]),
        (False, [AWAY, AWAY, AWAY, OLD, AWAY, None], None, [OLD, OLD]),
        (False, [AWAY, OLD, False, None], None, [OLD, OLD]),  # the first ack arrived late
        (False, [ServerRefused("no"), OLD, True], True, [OLD, OLD]),
        (True, [OLD, True], True, [OLD]),
        (True, [NEW, True], True, [NEW]),
        (True, [None, False, None], False, [OLD]),
        (True, [AWAY, None, False, None], False, [OLD]),  # nothing was sent yet, so this is no success
        (True, [OLD, False, NEW, NEW, True], True, [OLD, NEW]),  # a checkpoint arrived late
    ],
)
def test_an_answer_is_given_once(unsure, script, answer, acked):
    queue = Scripted(*script)
    connection = WorkerConnection(queue, Rota(("a",)), LOG, lambda seconds: None)  # type: ignore[arg-type]
    assert connection.until_answered(HeldJob(OLD, None, unsure), queue.ack) is answer
    assert [member for call, member in queue.asked if call == "ack"] == [one.member for one in acked]
    assert queue.script == []
    assert not connection.away or answer is None


def checkpoints(*script: object) -> tuple[Checkpoints, Scripted]:
    queue = Scripted(*script)
    made = Checkpoints(queue, Alarm(Scoreboard().slot(1)), LOG, Emitter(lambda: queue, LOG))  # type: ignore[arg-type,return-value]
    made.begin(OLD)
    return made, queue


def saved(held: HeldJob) -> bytes | None:
    return read(held.job.member).checkpoint


def test_a_saved_checkpoint_changes_the_reservation_that_is_answered():
    made, _ = checkpoints(True, True)
    made.keep(MARK, b"1")
    made.keep(MARK, b"2")
    held = made.end()
    assert (saved(held), held.unsaved, held.unsure) == (b"2", None, False)


def test_a_broken_call_is_remembered_and_later_calls_wait(monkeypatch):
    made, queue = checkpoints(AWAY, NEW, True)
    made.keep(MARK, b"1")
    made._not_before += 60
    made.keep(MARK, b"2")
    assert len(queue.asked) == 1
    made._not_before = 0
    made.keep(MARK, b"3")
    assert [call for call, _ in queue.asked] == ["checkpoint", "held", "checkpoint"]
    held = made.end()
    assert (saved(held), held.unsaved, held.unsure) == (b"3", None, False)


def test_a_checkpoint_that_never_arrived_is_sent_with_the_answer():
    made, _ = checkpoints(AWAY)
    made.keep(MARK, b"1")
    held = made.end()
    assert (saved(held), held.unsaved, held.unsure) == (None, b"1", True)
    made.begin(ANOTHER)
    assert made.end() == HeldJob(ANOTHER)


def test_a_server_that_refuses_has_changed_nothing():
    made, _ = checkpoints(ServerRefused("no"))
    made.keep(MARK, b"1")
    assert made.end().unsaved == b"1"


@pytest.mark.parametrize("script", [[False], [AWAY, None], [AWAY, NEW, False, NEW]], ids=str)
def test_a_lost_lease_is_reported_to_the_alarm(script, monkeypatch):
    made, queue = checkpoints(*script)
    lost = []
    monkeypatch.setattr(made.alarm, "lease_lost", lambda: lost.append(True))
    while queue.script:
        made._not_before = 0
        made.keep(MARK, b"1")
    assert lost == [True]


def test_nothing_is_saved_after_the_end_of_a_job():
    made, queue = checkpoints()
    made.end()
    with pytest.raises(NotInJob):
        made.keep(MARK, b"1")
    made.begin(ANOTHER)
    with pytest.raises(NotInJob):
        made.keep(MARK, b"1")
    assert queue.asked == []


def test_the_end_waits_for_a_running_call():
    made, queue = checkpoints(True)
    sent, go = threading.Event(), threading.Event()
    whole = queue.checkpoint

    def slow(held: Reserved, member: bytes) -> Any:
        sent.set()
        assert go.wait(60)
        return whole(held, member)

    queue.checkpoint = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=made.keep, args=(MARK, b"1"))
    thread.start()
    assert sent.wait(60)
    ends: list[HeldJob] = []
    ending = threading.Thread(target=lambda: ends.append(made.end()))
    ending.start()
    ending.join(0.05)
    assert ends == []
    go.set()
    ending.join(60)
    thread.join(60)
    assert saved(ends[0]) == b"1"


def test_each_refusal_is_logged_once() -> None:
    lines = list[bytes]()
    log = Log("worker", write=lambda line: lines.append(line))
    server: Any = Scripted()
    connection = WorkerConnection(server, Rota(("a",)), log, lambda _: None)
    for _ in range(3):
        for error in (ServerRefused("no queue"), WrongPassword("may not receive"), ConnectionLost("broke")):
            connection.broke(error)
    assert [line.split(b"error=")[1].strip() for line in lines] == [b'"no queue"', b'"may not receive"']


class Leaving(Scripted):
    """A connection with several servers: an answer can be handed over to another one."""

    def __init__(self, takes: bool, *script: object) -> None:
        super().__init__(*script)
        self.takes, self.left = takes, list[tuple[Reserved, bool]]()

    def leave(self, held: Reserved, answer: object, *, sure: bool) -> bool:
        self.left.append((held, sure))
        return self.takes


def answers(queue: Any) -> WorkerConnection:
    return WorkerConnection(queue, Rota(("a",)), LOG, lambda seconds: None)


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ([Unreachable("refused")], [(OLD, True)]),
        ([AWAY], [(OLD, False)]),  # it may have been sent
        ([ServerRefused("no"), OLD, True], []),
    ],
)
def test_an_answer_is_handed_over_after_the_server_was_unreachable_for_a_second(
    script: list[object], left: list[tuple[Reserved, bool]]
) -> None:
    queue = Leaving(True, *script)
    connection = answers(queue)
    connection._away_since = time.monotonic() - LEAVES
    connection.until_answered(HeldJob(OLD), queue.ack)
    assert queue.left == left
    assert queue.script == []


def test_an_answer_is_not_handed_over_within_the_first_second_or_without_a_server() -> None:
    queue = Leaving(True, AWAY, OLD, True)
    assert answers(queue).until_answered(HeldJob(OLD), queue.ack) is True
    assert queue.left == []
    queue = Leaving(False, AWAY, OLD, True)
    connection = answers(queue)
    connection._away_since = time.monotonic() - LEAVES
    assert connection.until_answered(HeldJob(OLD), queue.ack) is True
    assert queue.left == [(OLD, False)]


def test_an_ack_that_a_turn_could_not_send_is_handed_over_once() -> None:
    queue = Leaving(True)
    connection = answers(queue)
    connection.finished, connection._away_since = [OLD], time.monotonic() - LEAVES
    connection.broke(Unreachable("refused"))
    assert connection.done is None
    assert not connection.unsure
    assert queue.left == [(OLD, True)]


# -- several jobs at a time, after a broken turn


def in_lane(lane: int) -> Reserved:
    mark = f"Ab3Ab3Ab3A.{3 + SLOTS * lane}.1.1"
    return reserved_of("q", b'{"job":"x","data":{},"attempts":1,"rsv":"%b"}' % mark.encode())


class LaneServer:
    """Holds jobs for the worker. refuses: it cannot be reached for an answer."""

    settings = SimpleNamespace(driver="redis")

    def __init__(self, held: list[Reserved]) -> None:
        self.held, self.refuses, self.answers = held, True, list[LaneAnswer]()

    def held_lanes(self, queues: Sequence[str], lanes: Sequence[int]) -> list[Reserved]:
        return self.held

    def turn_lanes(self, turn: LaneTurn) -> LaneReply:
        raise Unreachable("the reply is lost")

    def settle_lanes(self, queue: str, answers: Sequence[LaneAnswer]) -> list[bool]:
        if self.refuses:
            raise Unreachable("refused")
        self.answers += answers
        return [True]


def test_suspects_of_a_broken_turn_wait_again() -> None:
    suspects = [in_lane(1), in_lane(2)]
    server, board = LaneServer(suspects), Scoreboard(4)
    server.refuses = False
    turns = LaneTurns(cast(Any, server), Rota(("q",)), LOG, lambda _: None, board, board.slot(3), most=4)
    with pytest.raises(Unreachable) as broken:
        turns.take(2, (), busy=False, suspects=True)
    turns.broke(broken.value)
    turns.unsure = True
    assert turns.query_held({}) == []
    assert [(answer.text, answer.suspect) for answer in server.answers] == [(job.member, True) for job in suspects]
    assert sorted(turns.free) == [1, 2, 3, 4]


def test_jobs_of_a_broken_turn_are_queried_again_if_its_suspect_cannot_be_answered() -> None:
    suspect, job = in_lane(0), in_lane(1)
    server, board = LaneServer([suspect, job]), Scoreboard(4)
    turns = LaneTurns(cast(Any, server), Rota(("q",)), LOG, lambda _: None, board, board.slot(3), most=4)
    turns.unsure = True
    with pytest.raises(Unreachable) as broken:
        turns.query_held({})
    turns.broke(broken.value)
    assert turns.unsure
    server.refuses = False
    assert turns.query_held({}) == [job]
    assert not turns.unsure
    assert [answer.suspect for answer in server.answers] == [True]
