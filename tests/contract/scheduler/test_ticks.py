"""Ticks taken by a scheduler on a real server, many missed ticks, and the state of each entry; the tests call its turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qd import Qd
from qd.events import JobQueued, JobQueueing, ScheduledTaskFinished, ScheduledTaskSkipped, ScheduledTaskStarting
from qd.schedule.entry import Entry
from qd.scheduler import scheduler
from qd.scheduler.due import MOST
from qd.scheduler.entry_job import Guard
from qd.scheduler.ticks import ABREAST
from tests.support.redis import Client
from tests.support.schedule import HOUR, HalfAnHourAgo, Open, field, hourly, last_tick, moment_of, ready_payloads
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:unique:*")


# -- taken


def test_each_tick_sends_a_job_and_runs_a_function(
    app: Qd, report: Any, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    def touch() -> None:
        with (tmp_path / "ran").open("a") as file:
            file.write("x")

    app.schedule(report.bind(7), every=0.2)
    app.schedule(touch, every=0.2, name="touch")
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.sent")) >= 3 and len(host.logged("schedule.done")) >= 2)
    logged = [line.split("id=")[1].split()[0] for line in host.logged("schedule.sent")]
    assert [job.id for job in ready_payloads(redis)] == logged
    assert (tmp_path / "ran").read_text().startswith("xx")


def test_ticks_before_the_first_sight_of_an_entry_are_not_due(app: Qd, report: Any, redis: Client, open_host: Open):
    app.schedule(report.bind(7), every=HOUR)
    before = time.time()
    host = open_host()
    host.turns(lambda: field(redis, app))
    assert before - 1 < moment_of(redis, app) <= time.time() + 1
    assert (ready_payloads(redis), host.lines) == ([], [])


def test_two_hosts_take_each_tick_once(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(1), every=0.1)
    hosts = [open_host("web1"), open_host("web2")]

    def enough() -> bool:
        for host in hosts:
            host.scheduler.turn()
        return len(ready_payloads(redis)) >= 6

    hosts[0].turns(enough)
    logged = sorted(line.split("at=")[1].split()[0] for host in hosts for line in host.logged("schedule.sent"))
    assert len(logged) == len(set(logged)) == len(ready_payloads(redis))


def test_an_entry_on_every_host_runs_once_on_each(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(1), every=0.2).on_every_host()
    hosts = [open_host("web1"), open_host("web2")]

    def enough() -> bool:
        hosts[1].scheduler.turn()
        return all(len(host.logged("schedule.sent")) >= 3 for host in hosts)

    hosts[0].turns(enough)
    assert {name for name in redis.hash("qd:ticks") if "report" in name} == {"web1\x1freport(1)", "web2\x1freport(1)"}


def test_functions_due_together_run_in_order_and_background_ones_concurrently(
    app: Qd, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    file = tmp_path / "order"

    def write(text: str) -> None:
        with file.open("a") as opened:
            opened.write(text)

    def writes(name: str) -> Callable[[], None]:
        def run() -> None:
            write(f"+{name}")
            if name == "a":  # `b` and `c` wait for it, and `z` does not
                eventually(lambda: "+z" in file.read_text(), what="the background function")
            write(f"-{name}")

        return run

    for name in "abc":
        app.schedule(writes(name), every=HOUR, name=name, missed="once")
    app.schedule(writes("z"), every=HOUR, name="z", missed="once").in_background()
    for name in "abcz":
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - 2 * HOUR) * 1000)} x hourly")
    host = open_host(entries=hourly(app))
    host.turns(lambda: len(host.logged("schedule.done")) == 4)
    order = file.read_text().replace("+z", "").replace("-z", "")
    assert order == "+a-a+b-b+c-c"


def test_an_entry_waits_in_the_run_queue_until_its_next_tick_at_most(
    app: Qd, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    def backup() -> None:
        eventually((tmp_path / "go").exists, 30)

    app.schedule(backup, every=1, name="backup").without_overlapping()
    app.schedule(lambda: None, every=0.5, name="beat")
    host = open_host()

    def logged(word: str, entry: str) -> list[str]:
        return [line for line in host.logged(word) if f"entry={entry} " in line]

    host.turns(lambda: logged("schedule.started", "backup"))
    host.turns(lambda: len(logged("schedule.done", "beat")) >= 4)
    assert not logged("schedule.done", "backup")
    (tmp_path / "go").touch()
    host.turns(lambda: logged("schedule.done", "backup"))
    ticks = [line.split("at=")[1].split("Z")[0] for line in logged("schedule.started", "beat")]
    assert ticks == sorted(set(ticks))


def test_a_pause_does_not_change_an_entry_with_overlapping_runs(app: Qd, open_host: Open, tmp_path: Path) -> None:
    """A late run starts although earlier runs still run; otherwise it would stay late forever."""
    app.schedule(lambda: eventually((tmp_path / "go").exists, 30), every=0.5, name="long")
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.started")) >= 2)
    host.scheduler.paused = True
    before = len(host.logged("schedule.started"))
    until = time.time() + 1.5
    host.turns(lambda: time.time() > until)
    assert len(host.logged("schedule.started")) == before
    host.scheduler.paused = False
    host.turns(lambda: len(host.logged("schedule.started")) >= before + 5)
    assert not host.logged("schedule.done")
    (tmp_path / "go").touch()
    host.turns(lambda: len(host.logged("schedule.done")) >= before + 5)


def test_late_runs_of_one_entry_start_a_few_at_a_time(app: Qd, redis: Client, open_host: Open, tmp_path: Path) -> None:
    app.schedule(lambda: eventually((tmp_path / "go").exists, 30), every=1, name="f")
    redis.call("HSET", "qd:ticks", "f", f"{round((time.time() - 30) * 1000)} x e1")
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.started")) >= ABREAST)
    until = time.time() + 0.5
    host.turns(lambda: time.time() > until)
    assert host.scheduler.runs.alive == ABREAST
    (tmp_path / "go").touch()
    host.turns(lambda: len(host.logged("schedule.done")) >= 30)


def test_missed_runs_of_one_entry_run_one_after_the_other(app: Qd, redis: Client, open_host: Open) -> None:
    app.schedule(lambda: None, every=HOUR, name="f", missed="all")
    redis.call("HSET", "qd:ticks", "f", f"{round((time.time() - 5 * HOUR) * 1000)} x hourly")
    host, most = open_host(entries=hourly(app)), 0

    def over() -> bool:
        nonlocal most
        most = max(most, host.scheduler.runs.alive)
        return len(host.logged("schedule.done")) == 5

    host.turns(over)
    assert most == 1


# -- missed


@pytest.mark.parametrize(
    ("missed", "late"), [("skip", []), ("once", [1800]), ("all", [1800 + 2 * HOUR, 1800 + HOUR, 1800])]
)
def test_the_entry_decides_about_missed_ticks(
    app: Qd, report: Any, redis: Client, open_host: Open, missed: Any, late: list[float]
) -> None:
    app.schedule(report.bind(7), every=HOUR, missed=missed)
    last_tick(redis, app, 3 * HOUR, mark="hourly")
    skips: list[ScheduledTaskSkipped] = []
    app.on(ScheduledTaskSkipped)(skips.append)
    host = open_host(entries=hourly(app))
    host.turns(lambda: time.time() - moment_of(redis, app) < HOUR)
    found = [float(line.split("late=")[1]) for line in host.logged("schedule.sent")]
    assert found == pytest.approx(late, abs=20)
    assert len(ready_payloads(redis)) == len(late)
    expected = [f"count={3 - len(late)}"] if missed != "all" else []
    assert [line.split()[2] for line in host.logged("schedule.missed")] == expected
    assert [event.reason.split()[1] for event in skips] == [text.removeprefix("count=") for text in expected]


def test_a_changed_timing_makes_no_old_ticks_due(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=0.2, missed="all")
    last_tick(redis, app, 50 * HOUR, mark="e3600")
    began = time.time()
    host = open_host(app=app)
    host.scheduler._connections["redis"].late = 0
    host.turns(lambda: host.logged("schedule.sent"))
    late = [float(line.split("late=")[1]) for line in host.logged("schedule.sent") if "late=" in line]
    assert max(late, default=0.0) < time.time() - began + 1


def test_a_field_from_a_clock_that_is_ahead_does_not_block_an_entry(
    app: Qd, report: Any, redis: Client, open_host: Open
):
    app.schedule(report.bind(7), every=0.2)
    last_tick(redis, app, -1000 * HOUR)
    host = open_host()
    host.turns(lambda: host.logged("schedule.sent"))
    # A reply that is a second late looks like a changed clock: then the line is logged again.
    assert {line.split()[1] for line in host.logged("schedule.clock_ahead")} == {"entry=report(7)"}


def test_an_entry_with_a_deleted_field_starts_again(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=0.2)
    host = open_host()
    host.turns(lambda: host.logged("schedule.sent"))
    redis.call("DEL", "qd:ticks")
    count = len(host.logged("schedule.sent"))
    host.turns(lambda: len(host.logged("schedule.sent")) > count)


def test_fields_of_undeclared_entries_are_deleted_after_400_days(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=HOUR)
    for name, days in (("gone", 401), ("resting", 399)):
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - days * 86400) * 1000)} x m")
    host = open_host()
    host.turns(lambda: field(redis, app))
    assert sorted(redis.hash("qd:ticks")) == ["report(7)", "resting"]


# -- jobs of all kinds


def test_the_job_of_a_non_overlapping_entry_is_not_sent_again_before_it_ends(
    app: Qd, report: Any, redis: Client, open_host: Open
) -> None:
    app.schedule(report.bind(7), every=0.2, overlap=False)
    host = open_host()
    host.turns(lambda: host.logged("schedule.skipped"))
    (job,) = ready_payloads(redis)
    assert f"its job is still waiting or running (id {job.id})" in host.logged("schedule.skipped")[0]
    (lock,) = redis.text("KEYS", "qd:unique:*")
    redis.call("DEL", lock)
    host.turns(lambda: len(ready_payloads(redis)) == 2)


def test_a_chain_is_sent_with_its_following_jobs(app: Qd, report: Any, redis: Client, open_host: Open):
    app.schedule(app.chain(report.bind(1), report.bind(2)), every=0.2, name="chain")
    app.schedule(report.bind(3).using(queue="other"), every=0.2, name="other")
    host = open_host()
    host.turns(lambda: ready_payloads(redis) and ready_payloads(redis, "other"))
    relations = ready_payloads(redis)[0].qd
    assert relations is not None
    assert len(relations.chain) == 1


def test_hooks_and_listeners_are_called_and_their_errors_are_harmless(
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

    host = open_host(guard=Guard(0.3))
    host.turns(lambda: len(host.logged("schedule.sent")) >= 2)
    assert seen[:4] == ["JobQueueing", "ScheduledTaskStarting", "JobQueued", "ScheduledTaskFinished"]
    assert b'"trace":"t1"' in redis.call("LINDEX", "queues:default", 0)
    logged = host.logged("schedule.listener")
    assert "a listener took longer than 0.3 s" in logged[0]
    assert "a listener raised SystemExit: 3" in logged[1]


def test_an_entry_whose_job_cannot_be_made_fails_and_the_others_continue(
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
    host.turns(lambda: host.logged("schedule.sent") and host.logged("schedule.failed"))
    assert "entry=bad" in host.logged("schedule.failed")[0]
    assert "its job could not be made: raised ValueError: no such customer" in host.logged("schedule.failed")[0]
    assert all("entry=good" in line for line in host.logged("schedule.sent"))


# -- since and until: `qd schedule run`


def test_taken_ticks_are_not_taken_again_after_the_store_lost_them(app: Qd, redis: Client, open_host: Open) -> None:
    app.schedule(lambda: None).every(1).name("each")
    host = open_host(since=int(redis.text("TIME")[0]) - 3)
    host.turns(lambda: len(host.logged("schedule.done")) >= 4)
    redis.call("FLUSHALL")
    ran = len(host.logged("schedule.started"))
    host.turns(lambda: len(host.logged("schedule.started")) >= ran + 2)
    ticks = [line.partition(" at=")[2].partition(" ")[0] for line in host.logged("schedule.started")]
    assert len(ticks) == len(set(ticks))


def test_since_and_until_limit_the_taken_ticks(app: Qd, report: Any, redis: Client, open_host: Open) -> None:
    app.schedule(report.bind(7), every=1)
    now = int(time.time())
    for _ in range(2):  # the second run finds nothing to do
        host = open_host(since=now - 3, until=now - 1)
        host.turns(lambda host=host: host.scheduler.idle)  # type: ignore[misc]
        assert len(ready_payloads(redis)) == 3, "both ends are included"


def test_entries_with_the_same_due_time_share_one_heap_item(app: Qd, report: Any, open_host: Open) -> None:
    entries: list[Entry] = []
    for n in range(300):
        call = report.bind(n)
        app.schedule(call, every=HOUR, name=f"e{n}")
    entries += app.schedule.entries()
    host = open_host()
    host.turns(lambda: len(host.scheduler._control.moments) == 300)
    assert len(host.scheduler._control.moments._heap) == 1, "entries due at the same time share an item"


# --- many missed ticks


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
    (line,) = host.logged("schedule.missed")
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
    host.turns(lambda: len(host.logged("schedule.done")) == 3)
    names = [
        line.split("entry=")[1][0] for line in host.lines if line.startswith(("schedule.started", "schedule.done"))
    ]
    assert "".join(names) == "aabbcc"


# --- the state of an entry


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
        return {line.split(" at=")[1].split()[0] for line in host.logged("schedule.sent") if f"entry={name} " in line}

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

    def logged() -> list[str]:
        lines = [line for host in hosts for word in ("sent", "started") for line in host.logged(f"schedule.{word}")]
        hosts[1].scheduler.turn()
        return [line.partition("at=")[2].partition(" ")[0] for line in lines]

    hosts[0].turns(lambda: time.time() - moment_of(redis, app) < HOUR)
    assert len(logged()) == len(set(logged())) == 9
