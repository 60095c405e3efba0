"""A keeper that has much to look at says so all the while: its master kills one that is silent."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import pytest

from qd.keeper.dead import Dead
from qd.log import Log
from qd.process.hands import Hands
from qd.process.scoreboard import H, Scoreboard
from qd.store.hosts import Master


def test_each_report_of_a_master_that_is_looked_at_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = count(1)
    monkeypatch.setattr("qd.keeper.dead.now", lambda: next(signs))
    log = Log("keeper", write=lambda line: None)
    hands = Hands(Scoreboard(), cast(Any, None), "us", 1, log)
    reports = [Master(f"other{n}", "elsewhere", 1, 0.0, 0.0) for n in range(50)]
    Dead(cast(Any, None), ("a",), hands, log).dead_masters(lambda: reports, lambda token: None)
    assert hands.board.header(H.KEEPER_ALIVE) == 50
