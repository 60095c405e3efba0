"""Ticks as a scheduler takes them, on a real server: its turns are made by the test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qd import Qd
from qd.config import load
from qd.connectors.redis.ticks import RedisTicks
from qd.errors import ConnectionLost
from qd.events import JobQueued, JobQueueing, ScheduledTaskFinished, ScheduledTaskSkipped, ScheduledTaskStarting
from qd.payload import Payload, read
from qd.schedule import Entry
from qd.scheduler.guard import Guard
from qd.store import schedule as notes
from tests.support.resp import Client
from tests.support.scheduling import Host
from tests.support.server import Server

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:unique:*", "qd:down")
Open = Callable[..., Host]
HOUR = 3600.0


@pytest.fixture
def app(server: Server) -> Qd:
    made = Qd()
    made.settings = load(code={"url": server.url}, environ={})
    return made


@pytest.fixture
def report(app: Qd) -> Any:
    @app.job("report")
    def report(day: int) -> None: ...

    return report


@pytest.fixture
def open_host(app: Qd, server: Server, clean_redis: Client) -> Iterator[Open]:
    """open_host(name=...): a scheduler of the app's entries on that host; ended at the end."""
    opened: list[Host] = []

    def make(name: str = "web1", **more: Any) -> Host:
        opened.append(Host(more.pop("app", app), server, name, **more))
        return opened[-1]

    yield make
    for host in opened:
        host.close()


def waiting(redis: Client, queue: str = "default") -> list[Payload]:
    return [read(raw) for raw in redis.call("LRANGE", f"queues:{queue}", 0, -1)]


def mark_of(app: Qd) -> str:
    (entry,) = app.schedule.entries()
    return entry.timing.mark


def last_tick(redis: Client, app: Qd, ago: float, mark: str = "") -> None:
    """The app's one entry had its last tick so many seconds ago."""
    (entry,) = app.schedule.entries()
    key = "queues:default:ticks" if entry.kind == "job" else "qd:ticks"
    redis.call("HSET", key, entry.name, f"{round((time.time() - ago) * 1000)} x {mark or mark_of(app)}")


def field(redis: Client, app: Qd) -> str:
    (entry,) = app.schedule.entries()
    key = "queues:default:ticks" if entry.kind == "job" else "qd:ticks"
    return str(redis.text("HGET", key, entry.name) or "")


def moment_of(redis: Client, app: Qd) -> float:
    return int(field(redis, app).split()[0] or 0) / 1000


class HalfAnHourAgo:
    """Each hour; the last tick was half an hour ago."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self) -> None:
        self.base = round(time.time() - HOUR / 2)

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


def hourly(app: Qd) -> list[Entry]:
    """The app's entries, so timed: a test that begins on the hour is no other."""
    timing = HalfAnHourAgo()
    return [replace(entry, timing=timing) for entry in app.schedule.entries()]


# -- taken


def test_a_job_is_sent_at_each_tick_and_a_function_is_run(
    app: Qd, report: Any, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    def touch() -> None:
        with (tmp_path / "ran").open("a") as file:
            file.write("x")

    app.schedule(report.bind(7), every=0.2)
    app.schedule(touch, every=0.2, name="touch")
    host = open_host()
    host.turns(lambda: len(host.said("schedule.sent")) >= 3 and len(host.said("schedule.done")) >= 2)
    told = [line.split("id=")[1].split()[0] for line in host.said("schedule.sent")]
    assert [job.id for job in waiting(redis)] == told
    assert (tmp_path / "ran").read_text().startswith("xx")


def test_nothing_is_due_that_was_before_the_entry_was_first_seen(app: Qd, report: Any, redis: Client, open_host: Open):
    app.schedule(report.bind(7), every=HOUR)
    before = time.time()
    host = open_host()
    host.turns(lambda: field(redis, app))
    assert before - 1 < moment_of(redis, app) <= time.time() + 1
    assert (waiting(redis), host.lines) == ([], [])


def test_two_hosts_take_each_tick_once(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(1), every=0.1)
    hosts = [open_host("web1"), open_host("web2")]

    def enough() -> bool:
        for host in hosts:
            host.scheduler.turn()
        return len(waiting(redis)) >= 6

    hosts[0].turns(enough)
    told = sorted(line.split("at=")[1].split()[0] for host in hosts for line in host.said("schedule.sent"))
    assert len(told) == len(set(told)) == len(waiting(redis))


def test_on_every_host_is_once_on_each(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(1), every=0.2).on_every_host()
    hosts = [open_host("web1"), open_host("web2")]

    def enough() -> bool:
        hosts[1].scheduler.turn()
        return all(len(host.said("schedule.sent")) >= 3 for host in hosts)

    hosts[0].turns(enough)
    assert sorted(redis.hash("queues:default:ticks")) == ["web1 report(1)", "web2 report(1)"]


def test_functions_of_one_moment_run_one_after_the_other_and_background_ones_beside_them(
    app: Qd, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    def writes(name: str) -> Callable[[], None]:
        def run() -> None:
            with (tmp_path / "order").open("a") as file:
                file.write(f"+{name}")
                file.flush()
                time.sleep(0.1)
                file.write(f"-{name}")

        return run

    for name in "abc":
        app.schedule(writes(name), every=HOUR, name=name, missed="once")
    app.schedule(writes("z"), every=HOUR, name="z", missed="once").in_background()
    for name in "abcz":
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - 2 * HOUR) * 1000)} x hourly")
    host = open_host(entries=hourly(app))
    host.turns(lambda: len(host.said("schedule.done")) == 4)
    order = (tmp_path / "order").read_text().replace("+z", "").replace("-z", "")
    assert order == "+a-a+b-b+c-c"


# -- missed


@pytest.mark.parametrize(
    ("missed", "late"), [("skip", []), ("once", [1800]), ("all", [1800 + 2 * HOUR, 1800 + HOUR, 1800])]
)
def test_what_was_missed_is_decided_by_the_entry(
    app: Qd, report: Any, redis: Client, open_host: Open, missed: Any, late: list[float]
) -> None:
    app.schedule(report.bind(7), every=HOUR, missed=missed)
    last_tick(redis, app, 3 * HOUR, mark="hourly")
    skips: list[ScheduledTaskSkipped] = []
    app.on(ScheduledTaskSkipped)(skips.append)
    host = open_host(entries=hourly(app))
    host.turns(lambda: time.time() - moment_of(redis, app) < HOUR)
    found = [float(line.split("late=")[1]) for line in host.said("schedule.sent")]
    assert found == pytest.approx(late, abs=20)
    assert len(waiting(redis)) == len(late)
    said = [f"count={3 - len(late)}"] if missed != "all" else []
    assert [line.split()[2] for line in host.said("schedule.missed")] == said
    assert [event.reason.split()[1] for event in skips] == [text.removeprefix("count=") for text in said]


def test_a_timing_that_a_deploy_changed_makes_nothing_due_that_is_old(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=0.2, missed="all")
    last_tick(redis, app, 50 * HOUR, mark="e3600")
    host = open_host(app=app)
    host.scheduler._reaches["redis"].late = 0
    host.turns(lambda: host.said("schedule.sent"))
    assert len(waiting(redis)) <= 3


def test_a_clock_ahead_of_ours_does_not_hold_an_entry_for_ever(app: Qd, report: Any, redis: Client, open_host: Open):
    app.schedule(report.bind(7), every=0.2)
    last_tick(redis, app, -1000 * HOUR)
    host = open_host()
    host.turns(lambda: host.said("schedule.sent"))
    assert len(host.said("schedule.ahead")) == 1


def test_an_entry_that_was_forgotten_begins_anew(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=0.2)
    host = open_host()
    host.turns(lambda: host.said("schedule.sent"))
    redis.call("DEL", "queues:default:ticks")
    count = len(host.said("schedule.sent"))
    host.turns(lambda: len(host.said("schedule.sent")) > count)


def test_fields_of_entries_that_nobody_declares_are_forgotten_after_400_days(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=HOUR)
    for name, days in (("gone", 401), ("resting", 399)):
        redis.call("HSET", "queues:default:ticks", name, f"{round((time.time() - days * 86400) * 1000)} x m")
    host = open_host()
    host.turns(lambda: field(redis, app))
    assert sorted(redis.hash("queues:default:ticks")) == ["report(7)", "resting"]


# -- a reply that is lost


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """lose(before=...): from now on the reply to the next claim of a tick is lost, after the server has done it."""

    def arm(meanwhile: Callable[[], object] = bool) -> None:
        real = RedisTicks.take

        def take(ticks: RedisTicks, claims: Any) -> Any:
            monkeypatch.setattr(RedisTicks, "take", real)
            real(ticks, claims)
            meanwhile()
            ticks.wire.close()
            raise ConnectionLost("the connection broke")

        monkeypatch.setattr(RedisTicks, "take", take)

    return arm


def test_a_job_whose_claim_was_not_answered_was_sent_once_and_is_told(
    app: Qd, report: Any, redis: Client, open_host: Open, lose: Callable[..., None]
) -> None:
    app.schedule(report.bind(7), every=1)
    host = open_host()
    host.turns(lambda: field(redis, app))
    lose()
    host.turns(lambda: host.said("schedule.sent"))
    assert [job.id for job in waiting(redis)] == [host.said("schedule.sent")[0].split("id=")[1].split()[0]]
    assert (len(host.said("redis.away")), len(host.said("redis.back"))) == (1, 1)


def test_a_function_whose_claim_was_not_answered_runs_once(
    app: Qd, redis: Client, open_host: Open, lose: Callable[..., None]
) -> None:
    app.schedule(lambda: None, every=1, name="touch")
    host = open_host()
    host.turns(lambda: field(redis, app))
    lose()
    host.turns(lambda: host.said("schedule.done"))
    taken = host.said("schedule.started")[0].split("at=")[1].split()[0]
    host.turns(lambda: len(host.said("schedule.done")) >= 2)
    assert [line for line in host.said("schedule.started") if taken in line] == host.said("schedule.started")[:1]


def test_a_function_nobody_can_tell_of_is_told_as_skipped(
    app: Qd, redis: Client, open_host: Open, lose: Callable[..., None]
) -> None:
    app.schedule(lambda: None, every=1, name="touch")
    host = open_host()
    host.turns(lambda: field(redis, app))
    lose(lambda: redis.call("HSET", "qd:ticks", "touch", f"{round(time.time() * 1000) + 500} other e1"))
    host.turns(lambda: host.said("schedule.skipped"))
    assert "the connection broke while it was taken" in host.said("schedule.skipped")[0]


# -- not taken


def test_a_pause_is_obeyed_within_a_second_and_its_ticks_are_told_as_skipped(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=0.2, missed="all")
    host = open_host()
    store = host.scheduler._control.store
    notes.pause(store, ["report(7)"], by="ann", reason="stocktaking")
    host.turns(lambda: host.said("schedule.skipped"))
    assert 'reason="paused by ann: stocktaking"' in host.said("schedule.skipped")[0]
    count = len(waiting(redis))
    notes.resume(store, ["report(7)"])
    host.turns(lambda: len(waiting(redis)) > count)
    host.turns(lambda: notes.skipped(store) and notes.last(store))
    assert notes.skipped(store)["report(7)"].detail == "paused by ann: stocktaking"
    assert notes.last(store)["report(7)"].outcome == "sent"


def test_in_maintenance_only_those_run_that_say_so(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(1), every=0.2, name="stops")
    app.schedule(report.bind(2), every=0.2, name="goes on").even_in_maintenance_mode()
    redis.call("SET", "qd:down", '{"by": "ann", "reason": "new disks"}')
    host = open_host()
    host.turns(lambda: len(host.said("schedule.skipped")) >= 2 and len(host.said("schedule.sent")) >= 2)
    assert all("entry=stops" in line and "by ann: new disks" in line for line in host.said("schedule.skipped"))
    assert all('entry="goes on"' in line for line in host.said("schedule.sent"))
    redis.call("DEL", "qd:down")
    host.turns(lambda: any("entry=stops" in line for line in host.said("schedule.sent")))


def test_a_filter_that_says_no_raises_or_hangs_skips_the_tick(app: Qd, report: Any, open_host: Open) -> None:
    def hangs() -> bool:
        while True:
            time.sleep(1)

    app.schedule(report.bind(1), every=0.2, name="no").when(lambda: False)
    app.schedule(report.bind(2), every=0.2, name="raises").when(lambda: 1 // 0 == 1)
    app.schedule(report.bind(3), every=0.2, name="hangs").skip(hangs)
    app.schedule(report.bind(4), every=0.2, name="yes").when(lambda: True)
    host = open_host(guard=Guard(0.05))

    def told(name: str, reason: str) -> bool:
        return any(f"entry={name} " in line and reason in line for line in host.said("schedule.skipped"))

    host.turns(
        lambda: (
            told("no", "said no")
            and told("raises", "its filter raised ZeroDivisionError")
            and told("hangs", "its filter took longer than 0.05 s")
            and host.said("schedule.sent")
        )
    )
    assert all("entry=yes" in line for line in host.said("schedule.sent"))


def test_a_paused_scheduler_takes_nothing_and_a_drained_one_is_idle(
    app: Qd, report: Any, redis: Client, open_host: Open
):
    app.schedule(report.bind(7), every=0.1)
    host, other = open_host(), open_host("web2")
    host.scheduler.paused = True

    def enough() -> bool:
        host.scheduler.turn()
        return len(other.said("schedule.sent")) >= 5

    other.turns(enough)
    assert host.said("schedule.sent") == []
    host.scheduler.drain()
    assert host.scheduler.idle


def test_what_stands_in_line_waits_while_the_scheduler_is_paused(app: Qd, redis: Client, open_host: Open) -> None:
    for name in "ab":
        app.schedule(lambda: None, every=HOUR, name=name, missed="once")
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - 2 * HOUR) * 1000)} x hourly")
    host = open_host(entries=hourly(app))
    host.turns(lambda: host.said("schedule.started"))
    host.scheduler.paused = True
    host.turns(lambda: host.said("schedule.done"))
    for _ in range(3):
        host.scheduler.turn()
    assert len(host.said("schedule.started")) == 1
    host.scheduler.paused = False
    host.turns(lambda: any("entry=b" in line for line in host.said("schedule.done")))


# -- jobs of all kinds


def test_a_job_of_an_entry_that_runs_alone_is_not_sent_again_before_it_is_done(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=0.2, overlap=False)
    host = open_host()
    host.turns(lambda: host.said("schedule.skipped"))
    (job,) = waiting(redis)
    assert f"its job is still waiting or running (id {job.id})" in host.said("schedule.skipped")[0]
    (lock,) = redis.text("KEYS", "qd:unique:*")
    redis.call("DEL", lock)
    host.turns(lambda: len(waiting(redis)) == 2)


def test_a_chain_is_sent_with_what_follows(app: Qd, report: Any, redis: Client, open_host: Open):
    app.schedule(app.chain(report.bind(1), report.bind(2)), every=0.2, name="chain")
    app.schedule(report.bind(3).using(queue="other"), every=0.2, name="other")
    host = open_host()
    host.turns(lambda: waiting(redis) and waiting(redis, "other"))
    ties = waiting(redis)[0].qd
    assert ties is not None
    assert len(ties.chain) == 1


def test_hooks_and_listeners_see_it_and_one_that_raises_or_hangs_harms_nothing(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=0.2)
    seen: list[str] = []
    app.payload_hook(lambda connection, queue, payload: {"trace": "t1"})
    for kind in (JobQueueing, JobQueued, ScheduledTaskStarting, ScheduledTaskFinished):
        app.on(kind)(lambda event: seen.append(type(event).__name__))

    @app.on(ScheduledTaskStarting)
    def hangs(event: ScheduledTaskStarting) -> None:
        time.sleep(60)

    @app.on(ScheduledTaskFinished)
    def leaves(event: ScheduledTaskFinished) -> None:
        raise SystemExit(3)

    host = open_host(guard=Guard(0.05))
    host.turns(lambda: len(host.said("schedule.sent")) >= 2)
    assert seen[:4] == ["JobQueueing", "ScheduledTaskStarting", "JobQueued", "ScheduledTaskFinished"]
    assert b'"trace":"t1"' in redis.call("LINDEX", "queues:default", 0)
    told = host.said("schedule.listener")
    assert "a listener took longer than 0.05 s" in told[0]
    assert "a listener raised SystemExit: 3" in told[1]


def test_a_job_that_cannot_be_made_is_told_as_failed_and_the_others_go_on(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1), every=0.2, name="bad")
    app.schedule(report.bind(2), every=0.2, name="good")

    @app.payload_hook
    def refuses(connection: str, queue: str, payload: Any) -> Any:
        if b"1" in str(payload["data"]).encode():
            raise ValueError("no such customer")
        return {}

    host = open_host()
    host.turns(lambda: host.said("schedule.sent") and host.said("schedule.failed"))
    assert "entry=bad" in host.said("schedule.failed")[0]
    assert "its job could not be made: raised ValueError: no such customer" in host.said("schedule.failed")[0]
    assert all("entry=good" in line for line in host.said("schedule.sent"))


# -- a server that is away, or refuses


def test_a_server_that_is_away_is_said_once_and_all_goes_on_when_it_is_back(
    app: Qd, report: Any, tmp_path: Path
) -> None:
    app.schedule(report.bind(7), every=0.2)
    with Server() as own:
        app.settings = load(code={"url": own.url}, environ={})
        host = Host(app, own)
        host.turns(lambda: host.said("schedule.sent"))
        own.kill()
        host.turns(lambda: host.said("redis.away"))
        until = time.monotonic() + 0.3
        host.turns(lambda: time.monotonic() > until)
        own.start()
        count = len(host.said("schedule.sent"))
        host.turns(lambda: len(host.said("schedule.sent")) > count)
        assert (len(host.said("redis.away")), len(host.said("redis.back"))) == (1, 1)
        host.close()


def test_a_server_that_is_full_is_said_once_for_all_entries(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    for n in range(3):
        app.schedule(report.bind(n), every=0.2)
    host = open_host()
    host.turns(lambda: len(host.said("schedule.sent")) >= 3)
    redis.call("CONFIG", "SET", "maxmemory", 1)
    try:
        host.turns(lambda: host.said("redis.away"))
        until = time.monotonic() + 0.5
        host.turns(lambda: time.monotonic() > until)
    finally:
        redis.call("CONFIG", "SET", "maxmemory", 0)
    count = len(waiting(redis))
    host.turns(lambda: len(waiting(redis)) > count + 3 and host.said("redis.back"))
    assert [len(host.said(word)) for word in ("redis.away", "redis.back", "schedule.refused")] == [1, 1, 0]
    told = [line.split(" late=")[0] for line in host.said("schedule.sent")]
    assert len({line.split("at=")[1] + line.split("entry=")[1] for line in told}) == len(told) == len(waiting(redis))


def test_an_entry_that_the_server_refuses_is_said_once_and_holds_up_no_other(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(1).using(queue="broken"), every=0.2, name="bad")
    app.schedule(report.bind(2), every=0.2, name="good")
    redis.call("SET", "queues:broken", "a string")
    host = open_host()
    host.turns(lambda: len(host.said("schedule.sent")) >= 8)
    (line,) = host.said("schedule.refused")
    assert "entry=bad" in line
    redis.call("DEL", "queues:broken")
    host.turns(lambda: waiting(redis, "broken"))


def test_the_entries_of_one_server_go_on_while_another_hangs(
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
            return sum(f"entry={name} " in line for line in host.said("schedule.sent"))

        host.turns(lambda: sent("near") and sent("far"))
        assert other.process is not None
        os.kill(other.process.pid, signal.SIGSTOP)
        host.turns(lambda: host.said("redis.away"))
        near = sent("near")
        host.turns(lambda: sent("near") > near + 15, 20)
        assert all("connection=far" in line for line in host.said("redis.away"))
        os.kill(other.process.pid, signal.SIGCONT)
        far = sent("far")
        host.turns(lambda: sent("far") > far, 15)
        host.close()


# -- since and until: `qd schedule run`


def test_what_was_taken_is_not_taken_again_when_the_store_has_lost_it(app: Qd, redis: Client, open_host: Open) -> None:
    app.schedule(lambda: None).every(1).name("each")
    host = open_host(since=int(redis.text("TIME")[0]) - 3)
    host.turns(lambda: len(host.said("schedule.done")) >= 4)
    redis.call("FLUSHALL")
    ran = len(host.said("schedule.started"))
    host.turns(lambda: len(host.said("schedule.started")) >= ran + 2)
    ticks = [line.partition(" at=")[2].partition(" ")[0] for line in host.said("schedule.started")]
    assert len(ticks) == len(set(ticks))


def test_since_and_until_bound_what_is_taken(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=1)
    now = int(time.time())
    for _ in range(2):  # the second finds nothing left to do
        host = open_host(since=now - 3, until=now - 1)
        host.turns(lambda host=host: host.scheduler.idle)  # type: ignore[misc]
        assert len(waiting(redis)) == 3, "both ends count"


def test_a_place_for_an_entry_costs_no_more_than_it_must(app: Qd, report: Any, open_host: Open) -> None:
    entries: list[Entry] = []
    for n in range(300):
        call = report.bind(n)
        app.schedule(call, every=HOUR, name=f"e{n}")
    entries += app.schedule.entries()
    host = open_host()
    host.turns(lambda: len(host.scheduler._control.moments) == 300)
    assert len(host.scheduler._control.moments._heap) == 1, "entries of one moment share a place"
