"""qd doctor about the schedule: no scheduler runs, entries are overdue, paused or declared wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import pytest

from qd import Qd
from qd.cli import context
from qd.cli.checks import Finding, fleet
from qd.cli.checks.fleet import check_schedule
from qd.cli.main import command
from qd.store import schedule
from tests.cli.conftest import report
from tests.support.project import MakeProject, doctor
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("still")

SCHEDULER = {"slot": 2, "pid": 5, "state": "waiting", "entries": 2}
Look = Callable[[], list[Finding]]


def tidy() -> None: ...


@pytest.fixture
def look(configured: object) -> Iterator[Look]:
    """The findings for an app with two entries, and a third for another environment."""
    with click.Context(command):
        app = Qd()
        app.settings = settings = context.settings()
        job = app.job("mail.report", queue="reports")(tidy)
        app.schedule(job.bind()).every_minute().name("report")
        app.schedule(tidy).hourly().name("tidy")
        app.schedule(tidy).hourly().environments("moon").name("elsewhere")
        yield lambda: list(check_schedule(app, settings, fleet.read(settings)))


def ticked(redis: Client, *, report: float, tidy: float) -> None:
    """The last taken ticks were this many seconds ago."""
    now = int(redis.text("TIME")[0])
    redis.call("HSET", "qd:ticks", "report", f"{(now - int(report)) * 1000} t m")
    redis.call("HSET", "qd:ticks", "tidy", f"{(now - int(tidy)) * 1000} t m")


def test_entries_without_a_scheduler(look: Look) -> None:
    (line,) = look()
    assert (line.sign, line.value) == ("warn", "2 entries declared, and no scheduler runs anywhere")
    assert "qd schedule run" in line.fix


def test_a_schedule_with_a_scheduler_passes(look: Look, redis: Client) -> None:
    ticked(redis, report=1, tidy=1)
    report(redis, schedulers=[SCHEDULER])
    (line,) = look()
    assert (line.sign, line.value.partition(" in ")[0]) == ("ok", "3 entries, 1 for other environments; next report")


def test_a_schedule_run_by_a_crontab_passes(look: Look, redis: Client) -> None:
    ticked(redis, report=1, tidy=1)
    assert [line.sign for line in look()] == ["ok"]


def test_overdue_entries(look: Look, redis: Client) -> None:
    ticked(redis, report=600, tidy=9000)
    report(redis, schedulers=[SCHEDULER])
    (line,) = look()
    assert line.sign == "warn"
    assert line.value.startswith(("overdue: tidy for 1h", "overdue: tidy for 2h"))
    assert ", report for " in line.value


def test_overdue_entries_without_a_scheduler(look: Look, redis: Client) -> None:
    ticked(redis, report=600, tidy=9000)
    report(redis, schedulers=[SCHEDULER], seen_at=float(redis.text("TIME")[0]) - 60)  # it reported a minute ago
    (line,) = look()
    assert line.value == "2 entries declared, and no scheduler runs anywhere"


def test_paused_entries(look: Look, redis: Client) -> None:
    ticked(redis, report=1, tidy=1)
    store = context.store(context.settings(), "redis")
    schedule.pause(store, ["tidy"], by="ana@app-1", reason="disk full")
    schedule.pause(store, [schedule.ALL], by="ana@app-1")
    found = {line.fix: line.value for line in look()}
    assert found == {
        "qd schedule resume": "all entries paused by ana@app-1 just now",
        "qd schedule resume tidy": 'the entry tidy paused by ana@app-1 just now: "disk full"',
    }


# -- the command


def test_the_command_checks_the_schedule(project: MakeProject) -> None:
    shop = project(jobs='@app.job("a")\ndef a() -> None: ...\napp.schedule(a).daily()\n')
    assert doctor(shop).line("schedule").value == "1 entry declared, and no scheduler runs anywhere"
    shop.jobs('@app.job("a")\ndef a() -> None: ...\n')
    assert [line for line in doctor(shop).lines if line.what == "schedule"] == []


def test_an_invalid_declaration(project: MakeProject) -> None:
    found = doctor(project(jobs='def f() -> None: ...\napp.schedule(f).cron("0 0 31 2 *")\n'))
    bad = [line for line in found.lines if line.sign == "fail"]
    assert (found.code, len(bad)) == (78, 1)
    assert "31 2 *" in bad[0].value


def test_an_entry_with_an_invalid_qd_command(configured: object) -> None:
    with click.Context(command):
        app = Qd()
        app.settings = settings = context.settings()
        app.schedule.shell("qd-has-no-such-command").daily().name("backup")
        app.schedule.qd("failed list --nosuch").daily()
        app.schedule.qd("failed list --neither").daily().environments("moon")
        refused, *others = check_schedule(app, settings, fleet.read(settings))
    assert (refused.sign, [one.sign for one in others]) == ("fail", ["warn"])  # no scheduler runs
    assert "qd failed list --nosuch: No such option" in refused.value


def test_an_entry_whose_hours_exclude_every_tick(configured: object) -> None:
    with click.Context(command):
        app = Qd()
        app.settings = settings = context.settings()
        app.schedule(tidy).daily().between("23:00", "23:30").name("tidy")
        app.schedule(tidy).hourly().between("23:00", "23:30").name("well")
        app.schedule(tidy).daily().when(False).name("switched off")
        never, *others = check_schedule(app, settings, fleet.read(settings))
    assert (never.sign, [one.sign for one in others]) == ("fail", ["warn"])  # no scheduler runs
    assert never.value.startswith(f"tidy ({__file__}:")
    assert never.value.endswith(") never comes: 0 0 * * * is always outside of 23:00-23:30")
