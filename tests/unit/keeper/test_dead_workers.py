"""A keeper that has much to look at says so all the while: its master kills one that is silent."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import pytest

from qd.keeper.dead_workers import DeadWorkers
from qd.log import Log
from qd.master.code import ChildContext
from qd.process.scoreboard import H, Scoreboard
from qd.store.masters import MasterReport


def test_each_report_of_a_master_that_is_looked_at_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = count(1)
    monkeypatch.setattr("qd.keeper.dead_workers.now", lambda: next(signs))
    log = Log("keeper", write=lambda line: None)
    context = ChildContext(Scoreboard(), cast(Any, None), "us", 1, log)
    reports = [MasterReport(f"other{n}", "elsewhere", 1, 0.0, 0.0) for n in range(50)]
    DeadWorkers(cast(Any, None), ("a",), context, log).settle_masters(lambda: reports, lambda token: None)
    assert context.board.header(H.KEEPER_ALIVE) == 50
