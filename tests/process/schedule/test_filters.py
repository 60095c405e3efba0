"""The filters of the user run in a separate process: they can neither end nor delay the scheduler. Listeners run in the
scheduler itself and cost no lease."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from qd import Qd
from qd.config.load import load
from qd.events import ScheduledTaskStarting
from qd.process import fork
from qd.scheduler import filters, runs
from qd.scheduler.entry_job import Guard, UserCodeFailed
from tests.support.processes import QD, Procs
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.schedule import HOUR, Host, Open, hourly, ready_payloads
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:overlap:*"),
]

HARMFUL = """
import ctypes, signal

def asked(name):
    note("asked", name, os.getpid())

def left():
    os._exit(3)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def crashed():
    ctypes.string_at(0)

def raised():
    raise ValueError("no ink")

def stuck():
    note("stuck", os.getpid())
    mutex, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    c.pthread_mutex_lock(mutex)
    c.pthread_mutex_lock(mutex)  # for ever, with the GIL: no alarm is heard

def forked():
    return os.fork() >= 0

def closed():
    os.closerange(0, 65536)
    return True

for each in (left, killed, crashed, raised, stuck, forked, closed):
    app.schedule(quick.bind(1), every=1, name=each.__name__).when(each)
app.schedule(quick.bind(2), every=0.5, name="healthy").when(lambda: True)
app.schedule(lambda: note("ran", os.getppid()), every=0.5, name="runs")
"""
REASONS = {
    "left": "its filter ended its process .exit code 3.",
    "killed": "its filter ended its process .signal 9 .SIGKILL..",
    "crashed": "its filter ended its process .signal 11 .SIGSEGV..",
    "raised": "its filter raised ValueError: no ink",
    "stuck": "its filter took longer than 5 s",
}


def test_nothing_that_a_filter_does_ends_or_holds_up_the_scheduler(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + HARMFUL)
    witness = Witness(shop)
    work = Procs([*QD, "schedule", "work"], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    witness.wait("stuck")
    first = work.child("qd: scheduler").pid
    there = len(witness.starting("ran"))
    witness.wait("ran", there + 2)  # while one hangs
    assert not work.matches("skipped entry=stuck")
    for name, reason in REASONS.items():
        work.wait_line(f'schedule.skipped entry={name} .*reason="{reason}"', 20)
    for name in ("forked", "closed", "healthy"):
        work.wait_line(f"schedule.sent entry={name} ", count=3)
    assert {line.split()[1] for line in witness.starting("ran")} == {str(first)}
    assert first in [each.pid for each in work.children("qd: scheduler")]  # a fork has its title for a moment
    work.stop()
    lines = [match[0] for match in work.matches(r"schedule.sent entry=\S+ .*at=\S+")]
    sent = [(line.split("entry=")[1].split()[0], line.split(" at=")[1].split()[0]) for line in lines]
    assert len(set(sent)) == len(sent) == len(ready_payloads(redis))
    assert not work.matches("scheduler.died|schedule.failed")


def test_a_filter_runs_once_per_tick_in_another_process_after_the_checks_of_the_scheduler(
    app: Qd, report: Any, open_host: Open, tmp_path: Path
) -> None:
    def asked(name: str) -> Callable[[], bool]:
        def answer() -> bool:
            with (tmp_path / name).open("a") as file:
                file.write(f"{os.getpid()}\n")
            return True

        return answer

    app.schedule(report.bind(1), every=0.2, name="yes").when(asked("first")).skip(lambda: False).when(asked("second"))
    app.schedule(report.bind(2), every=0.2, name="no").when(asked("never")).when(False)
    host = open_host()
    host.turns(lambda: len(host.logged("schedule.sent")) >= 3 and len(host.logged("schedule.skipped")) >= 3)
    host.scheduler.drain()
    first, second = ((tmp_path / name).read_text().split() for name in ("first", "second"))
    assert first[:3] == second[:3]
    assert str(os.getpid()) not in first
    assert len(first) - len(host.logged("schedule.sent")) in (0, 1)
    assert not (tmp_path / "never").exists()
    assert all("when(False) returned false" in line for line in host.logged("schedule.skipped"))


def test_those_that_wait_for_a_filter_join_the_line_of_their_moment(
    app: Qd, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    def writes(name: str) -> Callable[[], None]:
        def run() -> None:
            with (tmp_path / "order").open("a") as file:
                file.write(f"+{name}")
                file.flush()
                eventually(lambda: name != "c" or (tmp_path / "go").exists())
                file.write(f"-{name}")

        return run

    for name in "abc":
        entry = app.schedule(writes(name), every=HOUR, name=name, missed="once")
        if name != "c":
            entry.when(lambda: eventually((tmp_path / "order").exists))
        redis.call("HSET", "qd:ticks", name, f"{round((time.time() - 2 * HOUR) * 1000)} x hourly")
    host = open_host(entries=hourly(app))
    host.turns(lambda: (tmp_path / "order").exists() and not host.scheduler._filters)
    host.scheduler.turn()
    (tmp_path / "go").touch()
    host.turns(lambda: len(host.logged("schedule.done")) == 3)
    assert (tmp_path / "order").read_text() == "+c-c+a-a+b-b"


def test_a_pause_cancels_running_filters_and_the_tick_is_decided_afterwards(
    app: Qd, report: Any, open_host: Open, tmp_path: Path
) -> None:
    def hangs() -> bool:
        (tmp_path / "asked").touch()
        eventually((tmp_path / "go").exists, 60)
        return True

    app.schedule(report.bind(1), every=HOUR, name="one", missed="once").when(hangs)
    host = waits_for(open_host, app, tmp_path)
    asker = psutil.Process(*host.scheduler._filters._running)
    host.scheduler.paused = True
    host.turns(lambda: not asker.is_running())
    assert not host.scheduler._filters
    assert host.lines == []
    (tmp_path / "go").touch()
    host.scheduler.paused = False
    host.turns(lambda: host.logged("schedule.sent"))


def test_a_drained_scheduler_is_idle_at_once_while_a_filter_still_runs(
    app: Qd, report: Any, open_host: Open, tmp_path: Path
) -> None:
    def hangs() -> bool:
        (tmp_path / "asked").touch()
        signal.pause()
        return True

    app.schedule(report.bind(1), every=HOUR, name="one", missed="once").when(hangs)
    host = waits_for(open_host, app, tmp_path)
    asker = psutil.Process(*host.scheduler._filters._running)
    host.scheduler.drain()
    assert host.scheduler.idle
    host.turns(lambda: not asker.is_running())
    assert host.lines == []


def waits_for(open_host: Open, app: Qd, folder: Path) -> Host:
    """A host whose one entry is due, and whose filter is being asked."""
    (entry,) = app.schedule.entries()
    host: Host = open_host(entries=hourly(app))
    field = f"{round((time.time() - 2 * HOUR) * 1000)} x hourly"
    host.scheduler._control.store.space.call("HSET", "qd:ticks", entry.name, field)
    host.turns((folder / "asked").exists)
    return host


def test_more_filters_than_there_may_be_processes_take_turns(
    app: Qd, report: Any, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MOST", 2)
    most = 0

    def counts() -> bool:
        nonlocal most
        most = max(most, len(host.scheduler._filters._running))
        return len({line.split("entry=")[1].split()[0] for line in host.logged("schedule.sent")}) == 5

    for n in range(5):
        app.schedule(report.bind(n), every=0.2, name=f"n{n}").when(lambda: True)
    host = open_host(guard=Guard(3.0))
    host.turns(counts)
    assert most == 2


def test_a_process_that_cannot_be_had_skips_the_tick(
    app: Qd, report: Any, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: object, **more: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    app.schedule(report.bind(1), every=0.2).when(lambda: True)
    host = open_host()
    monkeypatch.setattr(fork, "fork", none)
    host.turns(lambda: host.logged("schedule.skipped"))
    assert "no process could be started for its filter" in host.logged("schedule.skipped")[0]
    monkeypatch.undo()
    host.turns(lambda: host.logged("schedule.sent"))


def test_no_lease_runs_out_while_listeners_take_their_time(
    app: Qd,
    report: Any,
    redis: Client,
    server: Server,
    open_host: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight of them in one turn, which is longer than the lease. They only say so: the clock of the leases and what is left
    of the one on the server are moved by it."""
    (tmp_path / "qd.toml").write_text(f'[connections.redis]\nurl = "{server.url}"\n[schedule]\nlease = 60\n')
    app.settings = load(tmp_path / "qd.toml", environ={})
    leases: list[int] = []
    clock = SimpleNamespace(**vars(time))
    clock.monotonic = lambda: time.monotonic() + 15 * len(leases)
    monkeypatch.setattr(runs, "time", clock)

    @app.on(ScheduledTaskStarting)
    def slow(event: ScheduledTaskStarting) -> None:
        if event.task != "long" and host.logged("schedule.started") and len(leases) < 8:
            redis.call("PEXPIRE", "qd:overlap:long", redis.call("PTTL", "qd:overlap:long") - 15_000)
            leases.append(redis.call("EXISTS", "qd:overlap:long"))

    app.schedule(lambda: eventually((tmp_path / "go").exists, 60), every=1, name="long").without_overlapping()
    for n in range(8):
        app.schedule(report.bind(n), every=2)
    host = open_host()
    host.turns(lambda: host.logged("schedule.started"))
    host.turns(lambda: len(leases) >= 8)
    (tmp_path / "go").touch()
    host.turns(lambda: host.logged("schedule.done"))
    assert set(leases) == {1}


def test_an_error_whose_message_raises_is_reported_by_its_class() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def raises() -> None:
        raise Odd

    with pytest.raises(UserCodeFailed, match=r"^raised Odd$"):
        Guard().run(raises)
