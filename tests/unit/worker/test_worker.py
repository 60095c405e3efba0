"""Worker: when it may take a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from qd.process import scoreboard
from qd.process.scoreboard import H, Scoreboard, now
from qd.worker.status import ShutQueues
from qd.worker.worker import Worker


class BoardOfANewKeeper(Scoreboard):
    """The keeper writes its first contact right after the worker's first read of the scoreboard."""

    def header(self, word: H) -> int:
        before = super().header(word)
        scoreboard.set_open_queues(cast(Scoreboard, super()), True, ())
        self.set_header(H.KEEPER_CONTACT, now())
        return before


def test_a_new_worker_sees_maintenance_mode_before_the_first_contact_of_its_keeper() -> None:
    board = BoardOfANewKeeper()
    events = SimpleNamespace(looping=lambda before: True)
    settlement = SimpleNamespace(flush=lambda: None)
    shut = ShutQueues(board, ("mail",), force=False)
    worker: Any = SimpleNamespace(
        board=board, shut_queues=shut, paused=False, lease_ns=10**12, events=events, settlement=settlement
    )
    assert not Worker._may_look(worker)
    assert not Worker._may_look(worker)
    scoreboard.set_open_queues(board, False, ())
    shut.force = True
    assert Worker._may_look(worker)
