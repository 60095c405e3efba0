"""An app with many missed ticks: each turn handles some of them, current ticks go first, and nothing is computed twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from qd import Qd
from qd.scheduler import scheduler
from qd.scheduler.due import MOST
from tests.support.redis import Client
from tests.support.schedule import HOUR, Open, hourly, last_tick, ready_payloads

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*")


class EachTenSeconds:
    """A timing whose last tick was five seconds ago. calls: the number of calls of next_after."""

    text = mark = "tens"
    zone = "UTC"

    def __init__(self) -> None:
        self.base, self.calls = round(time.time()) - 5, 0

    def next_after(self, at: float) -> float:
        self.calls += 1
        return self.base + ((at - self.base) // 10 + 1) * 10


def test_missed_ticks_are_computed_once(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=10, missed="all")
    last_tick(redis, app, 3 * HOUR, mark="tens")
    (entry,) = app.schedule.entries()
    timing = EachTenSeconds()
    host = open_host(entries=[replace(entry, timing=timing)])
    host.turns(lambda: redis.call("LLEN", "queues:default") >= MOST + 6)
    assert timing.calls < 8 * MOST
    (line,) = host.said("schedule.missed")
    assert "count=73 " in line or "count=74 " in line


def test_a_turn_catches_up_briefly_and_current_ticks_go_first(
    app: Qd, report: Any, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOMENT", 0.0)
    for number in range(40):
        app.schedule(report.bind(number), every=HOUR, name=f"old {number}", missed="all")
        last = round((time.time() - 24 * HOUR) * 1000)
        redis.call("HSET", "qd:ticks", f"old {number}", f"{last} x hourly")
    old = hourly(app)
    app.schedule(report.bind(0).using(queue="new"), every=0.1, name="new")
    host = open_host(entries=[*old, app.schedule.entries()[-1]])
    before = 0
    for _ in range(20):
        host.scheduler.turn()
        sent = int(redis.call("LLEN", "queues:default"))
        assert sent - before <= 1, "one per turn, if a turn has no time"
        before = sent
    assert before
    host.turns(lambda: len(ready_payloads(redis, "new")) >= 3)
    assert redis.call("LLEN", "queues:default") < 40 * 24
    host.scheduler.drain()
    before = int(redis.call("LLEN", "queues:default"))
    host.scheduler.turn()
    assert (redis.call("LLEN", "queues:default"), host.scheduler.idle) == (before, True)


def test_functions_due_at_the_same_time_keep_their_order_over_several_turns(
    app: Qd, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOMENT", 0.0)
    for name in "abc":
        app.schedule(lambda: None, every=HOUR, name=name, missed="once")
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - 2 * HOUR) * 1000)} x hourly")
    host = open_host(entries=hourly(app))
    host.turns(lambda: len(host.said("schedule.done")) == 3)
    names = [
        line.split("entry=")[1][0] for line in host.lines if line.startswith(("schedule.started", "schedule.done"))
    ]
    assert "".join(names) == "aabbcc"
