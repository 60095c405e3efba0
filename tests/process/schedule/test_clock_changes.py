"""The night in which the clock is changed, with the real programs and a server whose clock is set to just before it.

The clocks of this host stay as they are, months away: Redis's decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qd import Qd
from tests.support.processes import QD, Procs
from tests.support.project import MakeProject
from tests.support.schedule import Host
from tests.support.schedulers import FaketimeServer
from tests.support.waiting import eventually

JOBS = """
@app.job("night")
def night(name: str) -> None: ...

def other() -> None: ...

berlin = {"timezone": "Europe/Berlin"}
app.schedule(night.bind("time"), cron="30 2 * * *", name="time", **berlin)
app.schedule(other, cron="0 30 2 * * *", name="time of a function", **berlin)
app.schedule(night.bind("beat"), cron="*/30 * * * *", name="beat", **berlin)
app.schedule(night.bind("hour"), cron="*/30 2 * * *", name="beat of one hour", **berlin)
"""


@pytest.fixture
def moved() -> Iterator[FaketimeServer]:
    """A server that is started by the test."""
    server = FaketimeServer("2026-01-01T00:00:00Z")
    yield server
    server.stop()


def seen(server: FaketimeServer) -> None:
    """Wait until the scheduler has seen all entries: what is due from now on is theirs."""
    with server.client() as redis:
        eventually(
            lambda: redis.call("HLEN", "qd:ticks") == 4,
            30,
            what="entries that the store knows of",
        )


def taken(work: Procs) -> list[tuple[str, str]]:
    """Entry and tick of all that was sent or started."""
    found = work.matches(r'schedule\.(?:sent|started) entry=("[^"]*"|\S+).* at=(\S+)')
    return sorted((one[1].strip('"'), one[2]) for one in found)


def test_what_the_clock_leaves_out_runs_as_it_is_put_forward(moved: FaketimeServer, project: MakeProject) -> None:
    moved.set("2026-03-29T01:40:00+01:00")
    moved.start()
    work = project(JOBS, url=moved.url).work("-w", "1")
    seen(moved)
    moved.set("2026-03-29T01:59:59+01:00")
    work.wait_line("schedule.sent .*entry=beat", 20)
    work.wait_line("schedule.done .*time of a function", 20)
    work.wait_line("job.done .*job=night", 20, count=2)
    at = "2026-03-29T01:00:00Z"
    assert taken(work) == [("beat", at), ("time", at), ("time of a function", at)]
    work.stop()


def test_what_the_clock_shows_twice_runs_once_and_a_beat_twice(moved: FaketimeServer, project: MakeProject) -> None:
    moved.set("2026-10-25T02:10:00+02:00")
    moved.start()
    shop = project(JOBS, url=moved.url)
    work = Procs([*QD, "schedule", "work"], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    seen(moved)
    first, again = "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"
    moved.set("2026-10-25T02:29:59+02:00")
    work.wait_line("schedule.done .*time of a function", 20)
    work.wait_line(f"schedule.sent .* at={first}", 20, count=3)
    moved.set("2026-10-25T02:29:59+01:00")
    work.wait_line(f"schedule.sent .* at={again}", 20, count=2)
    twice = [(name, at) for name in ("beat", "beat of one hour") for at in (first, again)]
    found = [one for one in taken(work) if one[1] in (first, again)]
    assert found == sorted([("time", first), ("time of a function", first), *twice])
    work.stop()


def test_entries_start_again_when_the_clock_is_set_back_by_hours_and_continue_when_it_is_right(
    moved: FaketimeServer,
) -> None:
    moved.set("2026-11-21T12:00:00Z")
    moved.start()
    app = Qd(moved.url)

    @app.job("report")
    def report() -> None: ...

    app.schedule(report.bind(), every=0.2, name="job", missed="once")
    app.schedule(lambda: None, every=0.2, name="function", missed="once")
    hosts = [Host(app, moved, "web1"), Host(app, moved, "web2")]

    def both_take(day: str) -> bool:
        hosts[1].scheduler.turn()
        lines = [line for host in hosts for word in ("sent", "started") for line in host.logged(f"schedule.{word}")]
        return all(
            any(f"entry={name} " in line and f"at={day}" in line for line in lines) for name in ("job", "function")
        )

    hosts[0].turns(lambda: both_take("2026-11-21T12"))
    moved.set("2026-11-20T10:00:00Z")
    hosts[0].turns(lambda: both_take("2026-11-20T10"))
    moved.set("2026-11-22T14:00:00Z")
    hosts[0].turns(lambda: both_take("2026-11-22"))
    # Whoever takes the first tick of the earlier day reports it. The other host reports it too, unless it reads that tick
    # before it reads the clock. A reply that comes a second late looks like a clock that was set: then it is reported again.
    reported = {line.split()[1] for host in hosts for line in host.logged("schedule.clock_ahead")}
    assert reported == {"entry=function", "entry=job"}
    for host in hosts:
        host.close()


def test_waiting_runs_start_again_too_when_the_clock_is_set_back(moved: FaketimeServer, tmp_path: Path) -> None:
    moved.set("2026-11-21T11:30:00Z")
    moved.start()
    app = Qd(moved.url)
    app.schedule(lambda: eventually((tmp_path / "go").exists, 30), cron="0 * * * *", name="long")
    app.schedule(lambda: None, cron="0 * * * *", name="waits")
    host = Host(app, moved)

    def begins_anew(name: str) -> bool:
        return any(f"entry={name} " in line for line in host.logged("schedule.clock_ahead"))

    with moved.client() as redis:
        host.turns(lambda: redis.call("HLEN", "qd:ticks") == 2)
    moved.set("2026-11-21T11:59:58Z")
    host.turns(lambda: host.logged("schedule.started"))
    moved.set("2026-11-20T10:10:00Z")
    host.turns(lambda: begins_anew("long"))
    (tmp_path / "go").touch()
    host.turns(lambda: begins_anew("waits"))
    assert len(host.logged("schedule.started")) == 1
    host.close()
