"""Ticks that are taken late or never: pauses, filters, lost replies, unreachable servers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qd import Qd
from qd.config.load import load
from qd.drivers.keyspace.records import KeptTicks
from qd.errors import ConnectionLost
from qd.scheduler import connection
from qd.scheduler.entry_job import Guard
from qd.store import schedule as notes
from tests.support.redis import Client
from tests.support.schedule import HOUR, Host, Open, field, hourly, ready_payloads
from tests.support.servers.redis import Server

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:unique:*", "qd:down")


# -- not taken


def test_pauses_are_read_once_a_second(app: Qd, report: Any, open_host: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    app.schedule(report.bind(7), every=HOUR)
    host = open_host()
    host.scheduler.turn()
    notes.pause(host.scheduler._control.store, ["report(7)"], by="ann", reason="stocktaking")
    ahead = 1.0
    host.scheduler.turn()
    assert list(host.scheduler.flags.pauses) == ["report(7)"]


def test_ticks_of_a_paused_entry_are_skipped(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=0.2, missed="all")
    host = open_host()
    store = host.scheduler._control.store
    notes.pause(store, ["report(7)"], by="ann", reason="stocktaking")
    host.turns(lambda: host.logged("schedule.skipped"))
    assert 'reason="paused by ann: stocktaking"' in host.logged("schedule.skipped")[0]
    count = len(ready_payloads(redis))
    notes.resume(store, ["report(7)"])
    host.turns(lambda: len(ready_payloads(redis)) > count)
    host.turns(lambda: notes.skipped(store) and notes.last(store))
    assert notes.skipped(store)["report(7)"].detail == "paused by ann: stocktaking"
    assert notes.last(store)["report(7)"].outcome == "sent"


def test_only_marked_entries_run_in_maintenance_mode(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(1), every=0.2, name="stops")
    app.schedule(report.bind(2), every=0.2, name="continues").even_in_maintenance_mode()
    redis.call("SET", "qd:down", '{"by": "ann", "reason": "new disks"}')
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.skipped")) >= 2 and len(host.logged("schedule.sent")) >= 2)
    assert all("entry=stops" in line and "by ann: new disks" in line for line in host.logged("schedule.skipped"))
    assert all("entry=continues " in line for line in host.logged("schedule.sent"))
    redis.call("DEL", "qd:down")
    host.turns(lambda: any("entry=stops" in line for line in host.logged("schedule.sent")))


def test_a_filter_that_returns_false_raises_or_hangs_skips_the_tick(app: Qd, report: Any, open_host: Open) -> None:
    def hangs() -> bool:
        while True:
            time.sleep(1)

    app.schedule(report.bind(1), every=0.2, name="no").when(lambda: False)
    app.schedule(report.bind(2), every=0.2, name="raises").when(lambda: 1 // 0 == 1)
    app.schedule(report.bind(3), every=0.2, name="hangs").skip(hangs)
    app.schedule(report.bind(4), every=0.2, name="yes").when(lambda: True)
    host = open_host(guard=Guard(0.05))

    def skipped(name: str, reason: str) -> bool:
        return any(f"entry={name} " in line and reason in line for line in host.logged("schedule.skipped"))

    host.turns(
        lambda: (
            skipped("no", "returned false")
            and skipped("raises", "its filter raised ZeroDivisionError")
            and skipped("hangs", "its filter took longer than 0.05 s")
            and host.logged("schedule.sent")
        )
    )
    assert all("entry=yes" in line for line in host.logged("schedule.sent"))


def test_a_paused_scheduler_takes_nothing_and_a_drained_one_is_idle(
    app: Qd, report: Any, redis: Client, open_host: Open
):
    app.schedule(report.bind(7), every=0.1)
    host, other = open_host(), open_host("web2")
    host.scheduler.paused = True

    def enough() -> bool:
        host.scheduler.turn()
        return len(other.logged("schedule.sent")) >= 5

    other.turns(enough)
    assert host.logged("schedule.sent") == []
    host.scheduler.drain()
    assert host.scheduler.idle


def test_queued_runs_wait_while_the_scheduler_is_paused(app: Qd, redis: Client, open_host: Open) -> None:
    for name in "ab":
        app.schedule(lambda: None, every=HOUR, name=name, missed="once")
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - 2 * HOUR) * 1000)} x hourly")
    host = open_host(entries=hourly(app))
    host.turns(lambda: host.logged("schedule.started"))
    host.scheduler.paused = True
    host.turns(lambda: host.logged("schedule.done"))
    for _ in range(3):
        host.scheduler.turn()
    assert len(host.logged("schedule.started")) == 1
    host.scheduler.paused = False
    host.turns(lambda: any("entry=b" in line for line in host.logged("schedule.done")))


# -- a lost reply


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """lose(meanwhile): the reply to the next claim of a tick is lost, after the server has executed it."""

    def arm(meanwhile: Callable[[], object] = bool) -> None:
        real = KeptTicks.begin

        def begin(ticks: KeptTicks, claims: Any) -> Any:
            monkeypatch.setattr(KeptTicks, "begin", real)
            real(ticks, claims)()

            def lost() -> None:
                meanwhile()
                ticks.space.close()
                raise ConnectionLost("the connection broke")

            return lost

        monkeypatch.setattr(KeptTicks, "begin", begin)

    return arm


def test_a_job_with_a_lost_claim_reply_was_sent_once_and_is_logged(
    app: Qd, report: Any, redis: Client, open_host: Open, lose: Callable[..., None]
) -> None:
    app.schedule(report.bind(7), every=1)
    host = open_host()
    host.turns(lambda: field(redis, app))
    lose()
    host.turns(lambda: host.logged("schedule.sent"))
    sent = [line.split("id=")[1].split()[0] for line in host.logged("schedule.sent")]  # and each tick since then
    assert sorted(str(job.id) for job in ready_payloads(redis)) == sorted(sent)
    assert (len(host.logged("redis.away")), len(host.logged("redis.back"))) == (1, 1)


def test_a_function_with_a_lost_claim_reply_runs_once(
    app: Qd, redis: Client, open_host: Open, lose: Callable[..., None]
) -> None:
    app.schedule(lambda: None, every=1, name="touch")
    host = open_host()
    host.turns(lambda: field(redis, app))
    lose()
    host.turns(lambda: host.logged("schedule.done"))
    taken = host.logged("schedule.started")[0].split("at=")[1].split()[0]
    host.turns(lambda: len(host.logged("schedule.done")) >= 2)
    assert [line for line in host.logged("schedule.started") if taken in line] == host.logged("schedule.started")[:1]


def test_a_function_with_an_unknown_claim_result_is_skipped(
    app: Qd, redis: Client, open_host: Open, lose: Callable[..., None]
) -> None:
    app.schedule(lambda: None, every=1, name="touch")
    host = open_host()
    host.turns(lambda: field(redis, app))
    lose(lambda: redis.call("HSET", "qd:ticks", "touch", f"{round(time.time() * 1000) + 500} other e1"))
    host.turns(lambda: host.logged("schedule.skipped"))
    assert "the connection broke while it was claimed" in host.logged("schedule.skipped")[0]


def test_a_function_claimed_again_and_run_is_not_logged_as_skipped(
    app: Qd, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first claim never reached the server."""
    app.schedule(lambda: None, every=1, name="touch")
    host = open_host()
    host.turns(lambda: field(redis, app))
    real = KeptTicks.begin

    def begin(ticks: KeptTicks, claims: Any) -> Any:
        monkeypatch.setattr(KeptTicks, "begin", real)
        ticks.space.close()
        raise ConnectionLost("the connection broke")

    monkeypatch.setattr(KeptTicks, "begin", begin)
    host.turns(lambda: host.logged("schedule.done"))
    redis.call("HSET", "qd:ticks", "touch", f"{round(time.time() * 1000) + 500} other e1")
    there = len(host.logged("schedule.done"))
    host.turns(lambda: len(host.logged("schedule.done")) > there)
    assert not host.logged("schedule.skipped")


# -- an unreachable or rejecting server


def test_an_outage_is_logged_once_and_ticks_continue_after_it(app: Qd, report: Any, tmp_path: Path) -> None:
    app.schedule(report.bind(7), every=0.2)
    with Server() as own:
        app.settings = load(code={"url": own.url}, environ={})
        host = Host(app, own)
        host.turns(lambda: host.logged("schedule.sent"))
        own.kill()
        host.turns(lambda: host.logged("redis.away"))
        until = time.monotonic() + 0.3
        host.turns(lambda: time.monotonic() > until)
        own.start()
        count = len(host.logged("schedule.sent"))
        host.turns(lambda: len(host.logged("schedule.sent")) > count)
        assert (len(host.logged("redis.away")), len(host.logged("redis.back"))) == (1, 1)
        host.close()


def test_a_full_server_is_logged_once_for_all_entries(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    for n in range(3):
        app.schedule(report.bind(n), every=0.2)
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.sent")) >= 3)
    redis.call("CONFIG", "SET", "maxmemory", 1)
    try:
        host.turns(lambda: host.logged("redis.away"))
        until = time.monotonic() + 0.5
        host.turns(lambda: time.monotonic() > until)
    finally:
        redis.call("CONFIG", "SET", "maxmemory", 0)
    count = len(ready_payloads(redis))
    host.turns(lambda: len(ready_payloads(redis)) > count + 3 and host.logged("redis.back"))
    assert [len(host.logged(word)) for word in ("redis.away", "redis.back", "schedule.refused")] == [1, 1, 0]
    lines = [line.split(" late=")[0] for line in host.logged("schedule.sent")]
    keys = {line.split("at=")[1] + line.split("entry=")[1] for line in lines}
    assert len(keys) == len(lines) == len(ready_payloads(redis))


def test_an_entry_rejected_by_the_server_is_logged_once_and_blocks_no_other(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1).using(queue="broken"), every=0.2, name="bad")
    app.schedule(report.bind(2), every=0.2, name="good")
    redis.call("SET", "queues:broken", "a string")
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.sent")) >= 8)
    (line,) = host.logged("schedule.refused")
    assert "entry=bad" in line
    redis.call("DEL", "queues:broken")
    host.turns(lambda: "entry=bad" in "".join(host.logged("schedule.sent")))
    redis.call("SET", "queues:broken", "a string")
    host.turns(lambda: len(host.logged("schedule.refused")) == 2)
    redis.call("DEL", "queues:broken")


def test_the_address_is_resolved_again_when_the_server_has_become_a_replica(
    app: Qd, report: Any, tmp_path: Path
) -> None:
    app.schedule(report.bind(7), every=0.2)
    name = tmp_path / "master"
    with Server() as old, Server() as new:
        name.symlink_to(old.socket)
        app.settings = load(code={"url": f"unix://{name}"}, environ={})
        host = Host(app, old)
        host.turns(lambda: host.logged("schedule.sent"))
        with old.client() as client:
            client.call("REPLICAOF", "127.0.0.1", str(new.port))
        host.turns(lambda: any("READONLY" in line for line in host.logged("redis.away")))
        name.unlink()
        name.symlink_to(new.socket)
        with new.client() as client:
            host.turns(lambda: ready_payloads(client) and host.logged("redis.back"))
        assert (len(host.logged("redis.away")), len(host.logged("redis.back"))) == (1, 1)
        host.close()


def test_entries_of_one_server_continue_while_another_hangs(
    app: Qd, report: Any, redis: Client, server: Server, open_host: Open, tmp_path: Path
) -> None:
    with Server() as other:
        text = f'[qd]\ndefault = "near"\n[connections.near]\nurl = "{server.url}"\n[connections.far]\nurl = "{other.url}"\n'
        (tmp_path / "qd.toml").write_text(text)
        app.settings = load(tmp_path / "qd.toml", environ={})
        app.schedule(report.bind(1), every=0.2, name="near")
        app.schedule(report.bind(2).using(connection="far"), every=0.2, name="far")
        host = open_host()

        def sent(name: str) -> int:
            return sum(f"entry={name} " in line for line in host.logged("schedule.sent"))

        host.turns(lambda: sent("near") and sent("far"))
        assert other.process is not None
        os.kill(other.process.pid, signal.SIGSTOP)
        host.turns(lambda: host.logged("redis.away"))
        near = sent("near")
        host.turns(lambda: sent("near") > near + 15)
        assert all("connection=far" in line for line in host.logged("redis.away"))
        os.kill(other.process.pid, signal.SIGCONT)
        far = sent("far")
        host.turns(lambda: sent("far") > far)
        host.close()
