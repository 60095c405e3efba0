"""`qd schedule run` in a crontab on any number of hosts: each tick of the minute runs once."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from qd.cli.schedule.run import AWAY, MINUTE, minute_of
from tests.support import warm
from tests.support.processes import QD, Procs
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.schedulers import FaketimeServer
from tests.support.waiting import eventually
from tests.support.witness import JOBS as NOTING
from tests.support.witness import Witness

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves("qd:ticks", "qd:schedule:*", "queues:*", "qd:unique:*"),
]

JOBS = (
    NOTING
    + """
@app.job("report", queue="reports")
def report(month: int) -> None: ...
"""
)

EACH_KIND = """
app.schedule(report.bind(7)).every_minute().name("job")
app.schedule(lambda: note("call")).every_minute().name("call")
app.schedule.shell("echo shell >> witness").every_minute().name("shell")
app.schedule.qd("declared").every_minute().name("qd")
"""

PRINTS = """
app.schedule(lambda: print("printed")).every_minute().name("call")
app.schedule.shell("echo told").every_minute().name("shell")
"""

LOGS = """
import logging

def logs():
    logging.getLogger("shop").info("all is well")
    logging.getLogger("shop").warning("all but one")

app.schedule(logs).every_minute().name("logs")
"""

YOUNG = 15  # seconds of a minute

NOT_NOW = """
app.schedule(lambda: note("no")).cron("0 0 29 2 *").name("leap")
app.schedule(lambda: note("no")).every_minute().when(lambda: False).name("filtered")
app.schedule(lambda: note("no")).every_minute().environments("moon").name("elsewhere")
app.schedule(lambda: note("no")).every_minute().name("held")
app.schedule(lambda: note("yes")).every_minute().name("ran")
"""


@pytest.fixture(scope="module")
def moved() -> Iterator[FaketimeServer]:
    with FaketimeServer("2026-06-01T12:00:00Z") as server:
        yield server


@pytest.fixture
def server(moved: FaketimeServer) -> Iterator[FaketimeServer]:
    """In place of the tests' usual one: by its clock it is no longer late in a minute, when a test asks for that."""
    with moved.client() as client:
        client.call("FLUSHALL")
        yield moved
        client.call("FLUSHALL")


@pytest.fixture
def early(server: FaketimeServer, redis: Client) -> None:
    """The minute of the server's clock is so young that a test ends in it, also on a host that is busy."""
    now = lambda: int(redis.text("TIME")[0])  # noqa: E731
    if now() % MINUTE >= YOUNG:
        server.set(datetime.fromtimestamp((now() // MINUTE + 1) * MINUTE, UTC).isoformat())
    eventually(lambda: now() % MINUTE < YOUNG, 20)


def shop_of(project: MakeProject, entries: str) -> tuple[Project, Witness]:
    shop = project(JOBS + entries)
    return shop, Witness(shop)


def run(shop: Project, *words: str) -> Procs:
    procs = Procs([*QD, "schedule", "run", *words], cwd=shop.root, env=shop.env())
    shop.started.append(procs)
    return procs


def outcome(shop: Project) -> Any:
    done = shop.qd("schedule", "run", "--json")
    return json.loads(done.stdout)


def test_the_minute_that_is_meant() -> None:
    found = {now: minute_of(now) for now in (600.0, 600.3, 630.0, 654.9, 655.0, 659.7, 660.0)}
    assert found == {600.0: 600, 600.3: 600, 630.0: 600, 654.9: 600, 655.0: 660, 659.7: 660, 660.0: 660}


# -- once


@pytest.mark.usefixtures("early")
def test_it_runs_what_is_due_and_leaves(project: MakeProject, redis: Client) -> None:
    shop, witness = shop_of(project, EACH_KIND)
    done = shop.qd("schedule", "run")
    assert (done.returncode, sorted(witness.lines)) == (0, ["call", "shell"]), done.stderr
    (payload,) = redis.text("LRANGE", "queues:reports", "0", "-1")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("done", "sent"))]
    assert sorted(line.partition(",")[0] for line in lines) == [
        "done call", "done qd", "done shell", f"sent job: job {json.loads(payload)['id']}",
    ]  # fmt: skip
    again = shop.qd("schedule", "run")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(witness.lines) == 2


@pytest.mark.usefixtures("early")
def test_many_hosts_with_that_line_run_each_tick_once(project: MakeProject, redis: Client) -> None:
    shop, witness = shop_of(project, EACH_KIND)
    hosts = [run(shop) for _ in range(6)]
    for host in hosts:
        host.ends_clean()
    assert sorted(witness.lines) == ["call", "shell"]
    assert redis.call("LLEN", "queues:reports") == 1


@pytest.mark.usefixtures("early")
def test_ticks_within_the_minute_are_taken_as_they_come_by_any_host(project: MakeProject, redis: Client) -> None:
    entries = 'app.schedule(lambda: note("tick")).every(seconds=1).name("fast")\n'
    shop, witness = shop_of(project, entries)
    hosts = [run(shop, "--json") for _ in range(3)]
    eventually(lambda: str(redis.text("CLIENT", "LIST")).count(" name=qd:default:scheduler ") == 3, 20)
    eventually(lambda: len(witness.lines) > 4, 20)
    for host in hosts:
        host.signal(signal.SIGTERM)
    ran = Counter[float]()
    for host in hosts:
        host.ends_clean()
        found = json.loads("\n".join(host.output))
        assert found["stopped"] == "this command was stopped (SIGTERM)"
        ran.update(one["tick_at"] for one in found["ran"])
    assert set(ran.values()) == {1}
    assert len(ran) == len(witness.lines)
    assert sorted(ran) == [min(ran) + n for n in range(len(ran))]  # none was left out


@pytest.mark.usefixtures("early")
def test_with_json_stdout_is_one_document(project: MakeProject) -> None:
    shop, _ = shop_of(project, PRINTS)
    done = shop.qd("schedule", "run", "--json")
    assert [(one["entry"], one["outcome"]) for one in json.loads(done.stdout)["ran"]] == [
        ("call", "done"),
        ("shell", "done"),
    ]
    assert done.stderr == "printed\ntold\n"


@pytest.mark.usefixtures("early")
def test_what_the_app_logs_is_on_stderr_from_a_warning_on(project: MakeProject) -> None:
    shop, _ = shop_of(project, LOGS)
    error = shop.qd("schedule", "run").stderr
    assert ("all but one" in error, "all is well" in error) == (True, False)
    tried = shop.qd("schedule", "test", "logs").stderr
    assert ("all but one" in tried, "all is well" in tried) == (True, True)


# -- what did not run


@pytest.mark.usefixtures("early")
def test_it_tells_why_an_entry_did_not_run(project: MakeProject) -> None:
    shop, witness = shop_of(project, NOT_NOW)
    shop.qd("schedule", "pause", "held", "--reason", "disk full")
    done = shop.qd("schedule", "run", "--reason")
    why = dict(line.removeprefix("skipped ").split(": ", 1) for line in done.stdout.splitlines() if "skipped" in line)
    assert why.keys() == {"leap", "filtered", "elsewhere", "held"}
    assert why["leap"].startswith("not due before 2028-02-29 00:00 UTC")
    assert "returned false" in why["filtered"]
    assert why["elsewhere"] == "off here: only moon, QD_ENV is not set"
    assert (why["held"].startswith("paused by "), why["held"].endswith("disk full")) == (True, True)
    assert witness.lines == ["yes"]
    skipped = {one["entry"]: one["reason"] for one in outcome(shop)["skipped"]}
    assert skipped["ran"].startswith("taken by ")
    assert skipped["held"].startswith("taken by ")


@pytest.mark.usefixtures("early")
def test_skipped_entries_are_listed_only_with_the_reason_option(project: MakeProject) -> None:
    shop, witness = shop_of(project, NOT_NOW)
    done = shop.qd("schedule", "run")
    ran = [line.partition(",")[0] for line in done.stdout.splitlines()]
    assert (done.returncode, ran, done.stderr) == (0, ["done held", "done ran"], "")
    assert sorted(witness.lines) == ["no", "yes"]


@pytest.mark.usefixtures("early")
@pytest.mark.leaves("qd:down")
def test_maintenance_mode_is_a_reason(project: MakeProject, redis: Client) -> None:
    shop, witness = shop_of(project, 'app.schedule(lambda: note("no")).every_minute().name("a")\n')
    shop.qd("down", "--reason", "upgrade")
    (skip,) = outcome(shop)["skipped"]
    assert (skip["entry"], "maintenance mode" in skip["reason"], "upgrade" in skip["reason"]) == ("a", True, True)
    assert not witness.lines


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("by", ["the file", "the key"])
def test_laravels_own_maintenance_mode_is_a_reason_where_it_is_obeyed(
    project: MakeProject, redis: Client, by: str
) -> None:
    shop, witness = shop_of(project, 'app.schedule(lambda: note("no")).every_minute().name("a")\n')
    shop.config(f'[laravel]\ncache_url = "{shop.url}"\ndown_file = "framework/down"\ndown = true\n')
    if by == "the file":
        (shop.root / "framework").mkdir()
        (shop.root / "framework" / "down").touch()
        shop.allowed.add("framework")
    else:
        redis.call("SET", "illuminate:foundation:down", "a:0:{}")
    done = shop.qd("schedule", "run", "--json")
    (skip,) = json.loads(done.stdout)["skipped"]
    assert (skip["entry"], skip["reason"]) == ("a", "Laravel's maintenance mode")
    assert ("its folder does not exist" in done.stderr) == (by == "the key")
    assert not witness.lines
    redis.call("DEL", "illuminate:foundation:down")


# -- ends


@pytest.mark.usefixtures("early")
def test_a_failed_run_is_exit_1_and_reported_on_stderr(project: MakeProject) -> None:
    zero, three = "app.schedule(lambda: 1 / 0).every_minute()", 'app.schedule.shell("exit 3").every_minute()'
    shop, _ = shop_of(project, f'{zero}.name("zero")\n{three}.name("three")\n')
    done = shop.qd("schedule", "run")
    assert (done.returncode, done.stdout) == (1, "")
    assert "failed zero: ZeroDivisionError: division by zero\n" in done.stderr
    assert "failed three: exit code 3\n" in done.stderr


@pytest.mark.usefixtures("early")
def test_term_lets_it_finish_and_a_second_one_ends_it(project: MakeProject) -> None:
    entries = """
def slow():
    note("begun")
    held()
    note("ended")

app.schedule(slow).every_minute().name("slow")
app.schedule(lambda: note("after")).every_minute().name("after")
"""
    shop, witness = shop_of(project, entries)
    shop.allowed.add("go")
    first = run(shop)
    eventually(lambda: witness.lines == ["begun"], 20)
    first.signal(signal.SIGTERM)
    (shop.root / "go").touch()
    first.ends_clean()
    assert witness.lines == ["begun", "ended"]  # and `after` was not begun: its turn had not come

    (shop.root / "go").unlink()
    shop.jobs((JOBS + entries).replace('"slow"', '"slow2"').replace('"after"', '"after2"'))
    second = run(shop)
    eventually(lambda: len(witness.lines) == 3, 20)
    second.signal(signal.SIGTERM)
    second.signal(signal.SIGINT)
    assert second.wait(15) == 1
    assert "failed slow2: ended: its scheduler stops" in second.lines


@pytest.mark.usefixtures("early")
def test_a_server_that_is_away_to_the_end_of_the_minute_is_69(project: MakeProject) -> None:
    """With a minute that is over."""
    shop, _ = shop_of(project, 'app.schedule(report.using(connection="other").bind(7)).every_minute().name("job")\n')
    shop.config(f'[connections.other]\nurl = "unix://{shop.root}/nobody.sock"\n')
    module = 'importlib.import_module("qd.cli.schedule.run")'  # the package has a command of this name
    over = f"import importlib; {module}.GRACE = -{MINUTE}; from qd.cli.main import main; main()"
    done = warm.run(
        [sys.executable, "-c", over, "schedule", "run", "--reason"], cwd=shop.root, env=shop.env(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (69, f"skipped job: {AWAY}\n")


def test_with_the_server_away_it_is_one_line(project: MakeProject) -> None:
    shop, _ = shop_of(project, EACH_KIND)
    away = shop.qd("schedule", "run", QD_REDIS_URL=f"unix://{shop.root}/nobody.sock")
    assert (away.returncode, away.stdout, away.stderr.count("\n")) == (69, "", 1)


def test_an_app_without_entries_asks_for_nothing(project: MakeProject) -> None:
    shop, _ = shop_of(project, "")
    done = shop.qd("schedule", "run", "--reason")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
