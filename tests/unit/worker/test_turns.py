"""qd.worker.turns: what a worker with several jobs does after a broken turn."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved, reserved_of
from qd.errors import Unreachable
from qd.log import Log
from qd.process import SLOTS
from qd.process.scoreboard import Scoreboard
from qd.worker.queues import Rota
from qd.worker.turns import LaneTurns

LOG = Log("worker", write=lambda line: None)


def reserved(lane: int) -> Reserved:
    mark = f"Ab3Ab3Ab3A.{3 + SLOTS * lane}.1.1"
    return reserved_of("q", b'{"job":"x","data":{},"attempts":1,"rsv":"%b"}' % mark.encode())


class Server:
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
    suspects = [reserved(1), reserved(2)]
    server, board = Server(suspects), Scoreboard(4)
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
    suspect, job = reserved(0), reserved(1)
    server, board = Server([suspect, job]), Scoreboard(4)
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
