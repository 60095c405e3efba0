"""The state of each entry: the field of its ticks, with similar names and across deploys."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qd import Qd
from tests.support.redis import Client
from tests.support.schedule import HOUR, HalfAnHourAgo, Open, hourly, moment_of
from tests.support.servers.redis import Server

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*")


def test_the_state_of_a_host_without_a_scheduler_is_deleted_after_a_week(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    def put(name: str, days: float) -> None:
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - days * 86400) * 1000)} x m")

    for pod, away in (("pod1", 8), ("pod2", 6), ("web1", 8)):
        put(f"{pod}\x1f", away)
        put(f"{pod}\x1fyearly", 300)
    put("pod3\x1fyearly", 300)
    put("yearly", 300)
    app.schedule(report.bind(7), every=HOUR).on_every_host()
    host = open_host("web1")
    host.turns(lambda: redis.call("HEXISTS", "qd:ticks", "web1\x1freport(7)"))
    found = redis.hash("qd:ticks")
    assert sorted(found) == [
        "pod2\x1f", "pod2\x1fyearly", "web1\x1f", "web1\x1freport(7)", "web1\x1fyearly", "yearly"
    ]  # fmt: skip
    assert time.time() - int(found["web1\x1f"].split()[0]) / 1000 < HOUR, "the host has updated its own field"


def test_an_entry_with_the_name_of_a_per_host_field_has_separate_state(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1), every=0.2, name="clean").on_every_host()
    app.schedule(report.bind(2), every=0.2, name="web1 clean")
    host = open_host("web1")

    def taken(name: str) -> set[str]:
        return {line.split(" at=")[1].split()[0] for line in host.said("schedule.sent") if f"entry={name} " in line}

    host.turns(lambda: len(taken("clean") & taken('"web1 clean"')) >= 2)  # both entries were taken at the same ticks


@pytest.mark.parametrize("was", ["of another queue", "a function"])
def test_old_and_new_code_together_take_each_tick_of_a_changed_entry_once(
    app: Qd, report: Any, redis: Client, server: Server, open_host: Open, was: str
) -> None:
    old = Qd(server.url)

    @old.job("report")
    def report_of_old() -> None: ...

    task: Any = report_of_old.bind() if was == "of another queue" else lambda: None
    old.schedule(task, every=HOUR, name="moves", missed="all")
    app.schedule(report.bind(1).using(queue="new"), every=HOUR, name="moves", missed="all")
    redis.call("HSET", "qd:ticks", "moves", f"{round((time.time() - 9 * HOUR) * 1000)} x hourly")
    timing = HalfAnHourAgo()
    hosts = [
        open_host("web1", app=old, entries=hourly(old, timing)),
        open_host("web2", entries=hourly(app, timing)),
    ]

    def told() -> list[str]:
        lines = [line for host in hosts for word in ("sent", "started") for line in host.said(f"schedule.{word}")]
        hosts[1].scheduler.turn()
        return [line.partition("at=")[2].partition(" ")[0] for line in lines]

    hosts[0].turns(lambda: time.time() - moment_of(redis, app) < HOUR)
    assert len(told()) == len(set(told())) == 9
