"""A server that refuses a key or all writes, or is away when the scheduler is to stop: what it costs others, and the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qd import Qd
from qd.config.load import load
from tests.support.processes import QD, Procs
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.schedule import Host, Open, ready_payloads
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:overlap:*", "qd:down")


def count(host: Host, word: str, name: str) -> int:
    return sum(f"entry={name} " in line for line in host.logged(word))


# -- one key


def test_an_entry_whose_lease_is_refused_is_logged_once_and_the_others_continue(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(lambda: None, every=0.2, name="alone").without_overlapping()
    app.schedule(lambda: None, every=0.2, name="other")
    redis.call("RPUSH", "qd:overlap:alone", "x")
    host = open_host()
    host.turns(lambda: count(host, "schedule.skipped", "alone") >= 3 and count(host, "schedule.done", "other") >= 3)
    (line,) = host.logged("schedule.refused")
    assert "entry=alone" in line
    assert "qd:overlap:alone" in line
    assert "WRONGTYPE" in line
    assert host.logged("redis.away") == []
    redis.call("DEL", "qd:overlap:alone")
    host.turns(lambda: count(host, "schedule.done", "alone"))
    host.scheduler.drain()
    host.turns(lambda: host.scheduler.idle)


def test_a_key_of_another_type_at_the_start_holds_up_the_entries_of_that_key(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1).using(queue="other"), every=0.2, name="bad")
    app.schedule(report.bind(2), every=0.2, name="good")
    redis.call("SET", "queues:other:notify", "x")
    host = open_host()
    host.turns(lambda: len(ready_payloads(redis)) >= 3 and host.logged("schedule.refused"))
    (line,) = host.logged("schedule.refused")
    assert "entry=bad" in line
    assert "queues:other:notify is a string" in line
    assert host.logged("redis.away") == []
    redis.call("DEL", "queues:other:notify")
    host.turns(lambda: ready_payloads(redis, "other"))


def test_ticks_of_another_type_are_logged_once_per_entry_and_entries_run_once_they_are_fixed(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1), every=0.2, name="on all").on_every_host()
    app.schedule(report.bind(2), every=0.2, name="one")
    redis.call("SET", "qd:ticks", "x")
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.refused")) == 2)
    assert all("qd:ticks is a string" in line for line in host.logged("schedule.refused"))
    assert host.logged("redis.away") == []
    redis.call("DEL", "qd:ticks")
    host.turns(lambda: count(host, "schedule.sent", "one") and len(host.logged("schedule.sent")) >= 4)
    assert len(host.logged("schedule.refused")) == 2


def test_unreadable_control_keys_are_ignored_and_logged_once(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1), every=0.2)
    redis.call("RPUSH", "qd:schedule:paused", "x")
    redis.call("RPUSH", "qd:down", "x")
    host = open_host()
    looks = 0

    def looked(reach: Any = host.scheduler._control, real: Callable[[], None] = host.scheduler._control._query) -> None:
        nonlocal looks
        real()
        looks += 1

    host.scheduler._control._query = looked  # type: ignore[method-assign]
    host.turns(lambda: looks >= 3 and len(ready_payloads(redis)) >= 3)
    assert sorted(line.split("key=")[1].split()[0] for line in host.logged("schedule.control_unreadable")) == [
        "qd:down",
        "qd:schedule:paused",
    ]
    assert host.logged("redis.away") == []


# -- what is only kept for people to read


def test_history_that_cannot_be_written_is_logged_once_and_written_later(
    app: Qd, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule(lambda: None, every=0.2, name="runs")
    app.schedule(lambda: None, every=0.2, name="skips").when(lambda: False)
    redis.call("SET", "qd:schedule:last", "x")
    host = open_host()
    host.turns(lambda: host.logged("schedule.not_kept") and redis.call("HLEN", "qd:schedule:skipped"))
    until = time.monotonic() + 2.2
    host.turns(lambda: time.monotonic() > until)
    (line,) = host.logged("schedule.not_kept")
    assert "key=qd:schedule:last" in line
    assert host.logged("redis.away") == []
    redis.call("DEL", "qd:schedule:last")
    host.turns(lambda: redis.call("HEXISTS", "qd:schedule:last", "runs"))


def test_a_server_that_is_full_while_no_tick_is_due_is_not_away(app: Qd, redis: Client, open_host: Open) -> None:
    app.schedule(lambda: time.sleep(0.1), every=0.5, name="runs").without_overlapping()
    host = open_host()
    host.turns(lambda: host.logged("schedule.started"))
    host.scheduler.drain()  # no tick is due any more
    redis.call("CONFIG", "SET", "maxmemory", 1)
    try:
        host.turns(lambda: host.logged("schedule.not_kept"))
        until = time.monotonic() + 1.5
        host.turns(lambda: time.monotonic() > until)
    finally:
        redis.call("CONFIG", "SET", "maxmemory", 0)
    assert len(host.logged("schedule.not_kept")) == 1
    assert host.logged("redis.away") == []


def test_a_lease_that_a_full_server_refuses_is_logged_once_and_taken_later(
    app: Qd, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule(lambda: None, every=1, name="alone").without_overlapping()
    host = open_host()
    real = host.scheduler.runs.blocked_by

    def full(entry: Any) -> str | None:
        redis.call("CONFIG", "SET", "maxmemory", 1)
        return real(entry)

    with monkeypatch.context() as patched:
        patched.setattr(host.scheduler.runs, "blocked_by", full)
        host.turns(lambda: host.logged("redis.away"))
    try:
        until = time.monotonic() + 1.5
        host.turns(lambda: time.monotonic() > until)
        assert len(host.logged("redis.away")) == 1
    finally:
        redis.call("CONFIG", "SET", "maxmemory", 0)
    host.turns(lambda: host.logged("schedule.done") and host.logged("redis.back"))


# -- away when it is to stop

LONG = """
def long():
    note("began", os.getpid())
    held()

app.schedule(long, every=1, name="long"){more}
"""


@pytest.mark.parametrize("more", ["", ".without_overlapping()"])
def test_term_while_redis_is_away_and_a_run_has_ended_ends_all(project: MakeProject, more: str) -> None:
    with Server() as own:
        shop = project(jobs=JOBS + LONG.format(more=more), url=own.url)
        witness = Witness(shop)
        shop.allowed.add("go")
        work = Procs([*QD, "schedule", "work", "--stop-timeout", "0"], cwd=shop.root, env=shop.env())
        shop.started.append(work)
        witness.wait("began")
        own.kill()
        work.wait_line(r"scheduler\[\d+\] redis.away")
        (shop.root / "go").touch()
        work.wait_line("schedule.done")
        work.stop()


def test_a_claimed_tick_that_could_not_start_is_logged_at_the_stop_and_not_waited_for(app: Qd) -> None:
    app.schedule(lambda: None, every=1, name="alone").without_overlapping()
    with Server() as own:
        app.settings = load(code={"url": own.url}, environ={})
        host = Host(app, own)
        real = host.scheduler.runs.blocked_by

        def waits(entry: Any) -> str | None:
            own.kill()
            return real(entry)

        host.scheduler.runs.blocked_by = waits  # type: ignore[method-assign]
        host.turns(lambda: host.logged("redis.away"))
        assert not host.scheduler.idle
        host.scheduler.drain()
        host.turns(lambda: host.scheduler.idle)
        (line,) = host.logged("schedule.skipped")
        assert "until the scheduler stopped" in line
        host.close()


def test_leases_are_not_renewed_in_a_loop_while_redis_is_unreachable(app: Qd, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def waits() -> None:
        eventually(go.exists, 30)

    app.schedule(waits, every=1, name="alone").without_overlapping()
    with Server() as own:
        app.settings = load(code={"url": own.url}, environ={})
        host = Host(app, own)
        host.turns(lambda: host.logged("schedule.started"))
        own.kill()
        host.turns(lambda: host.logged("redis.away"))
        go.touch()
        host.turns(lambda: host.logged("schedule.done"))
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            wait = host.scheduler.turn()
            assert host.scheduler.runs.due_in > 0
            time.sleep(min(wait, 0.05))
        host.close()
