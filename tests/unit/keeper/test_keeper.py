"""The keeper's signs of life during long work, and its warnings of dropped failed jobs."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.drivers.base import Forgotten, KeeperConnector
from qd.keeper import keeper
from qd.keeper.dead_workers import DeadWorkers
from qd.keeper.keeper import FailedRetention
from qd.log import Log
from qd.master.code import ChildContext
from qd.process.scoreboard import H, Scoreboard
from qd.store.masters import MasterReport


class Store:
    """Counters as the server stores them; records what is logged."""

    def __init__(self) -> None:
        self.dropped = {"a": 7, "b": 0}
        self.lines: list[tuple[str, int, int]] = []

    def forget_aged(self, queue: str, seconds: float, most: int) -> Forgotten:
        return Forgotten(0, self.dropped[queue])

    def warning(self, event: str, *, queue: str, count: int, total: int) -> None:
        assert event == "failed.dropped"
        self.lines.append((queue, count, total))


def test_drops_are_reported_once_a_minute_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: clock.now))
    store = Store()
    aged = FailedRetention(cast(KeeperConnector, store), ("a", "b"), 10.0, cast(Log, store))

    def look(after: float, leaving: bool = False, **dropped: int) -> list[Any]:
        clock.now += after
        store.dropped.update(dropped)
        store.lines.clear()
        aged.forget(leaving=leaving)
        return store.lines

    assert look(0) == [], "the keeper before this one has reported what is there"
    assert look(10, a=10) == [("a", 3, 10)]
    assert look(10, a=15, b=1) == [("b", 1, 1)]
    assert look(50) == [("a", 5, 15)]
    assert look(60, a=0) == [], "the counter started again"
    assert look(60, a=2) == [("a", 2, 2)]
    assert look(1, leaving=True, b=4) == [("b", 3, 4)]
    assert look(1, leaving=True) == []


def test_reading_each_report_of_a_master_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = count(1)
    monkeypatch.setattr("qd.process.scoreboard.now", lambda: next(signs))
    log = Log("keeper", write=lambda line: None)
    context = ChildContext(Scoreboard(), cast(Any, None), "us", 1, log)
    reports = [MasterReport(f"other{n}", "elsewhere", 1, 0.0, 0.0) for n in range(50)]
    DeadWorkers(cast(Any, None), ("a",), context, log).settle_masters(lambda: reports, lambda token: None)
    assert context.board.header(H.KEEPER_ALIVE) == 50
