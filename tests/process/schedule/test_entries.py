"""Entries of every kind, from code and from qd.toml, as the real qd work runs them."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.schedule import gone, lease, pids_in
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- entries of every kind


SCHEDULE = (
    JOBS
    + """
@app.job("keyed")
def keyed() -> None:
    note("keyed")

def touch() -> None:
    note("function")

async def atouch() -> None:
    note("async")

app.schedule(quick.bind(1)).every_second()
app.schedule(quick, every=0.5)
app.schedule(app.chain(quick.bind(2), quick.bind(3))).every(0.5)
app.schedule(keyed.using(key="one", delay=0.1)).every(0.5)
app.schedule(atouch).every(0.5).environments("production")
app.schedule(touch).every(0.5).environments("staging").name("not here")
app.schedule(touch).every(0.5).when(lambda: False).name("never")
app.schedule.shell("echo line >> witness;echo", "a 'b'", {"c": "$HOME"}).every(0.5).output_to("output")
"""
)

FILE = """
[schedule.entries.job]
job = "quick"
args = {n = 7}
every = "500ms"

[schedule.entries.function]
call = "jobs:touch"
cron = "* * * * * *"

[schedule.entries.command]
qd = "declared"
in_background = true
without_overlapping = true
every = "500ms"
output_to = "jobs"
"""


@pytest.mark.leaves("qd:ticks", "qd:schedule:*", "queues:*")
def test_entries_of_every_kind_run_where_they_are_meant_to(project: MakeProject):
    shop = project(SCHEDULE, FILE)
    shop.allowed |= {"output", "jobs"}
    witness, work = Witness(shop), shop.work("-w", "1", QD_ENV="production")
    for word in ("quick 0", "quick 1", "quick 2", "quick 3", "quick 7", "keyed", "async", "function", "line"):
        witness.wait(word)
    work.wait_line("schedule.done entry=command")
    work.stop()
    assert not work.matches('entry="not here"')
    assert not work.matches("schedule.(started|sent) entry=never")
    assert (shop.root / "output").read_text() == "a 'b' --c=$HOME\n"
    assert "quick" in (shop.root / "jobs").read_text()


@pytest.mark.leaves("qd:ticks", "qd:schedule:*", "queues:*")
def test_a_wrong_entry_ends_the_start_with_its_line(project: MakeProject):
    shop = project("app.schedule(print).weekdays()", "[schedule.entries.a]\nshell = 'true'\nevery = 1")
    work = shop.work("-w", "1")
    assert work.wait() == 3
    work.wait_line(r"jobs.py:\d+ is wrong: it has days but no time")


# -- functions and commands under qd work


HARMFUL = """
import signal
from qd import events

def killed(): os.kill(os.getpid(), signal.SIGKILL)
def left(): os._exit(7)
def raising(): raise BaseException("odd")
def closing(): os.closerange(0, 65536)
def deaf():
    for number in range(1, 65):
        if number not in (9, 19, 32, 33): signal.signal(number, signal.SIG_IGN)
def copying():
    if os.fork(): os._exit(8)
def hang(): time.sleep(300)
def sends(): quick.dispatch(7)

for each in (killed, left, raising, closing, deaf, copying, sends):
    app.schedule(each).every(seconds=1).name(each.__name__)
app.schedule(hang).every(seconds=1).timeout(0.3).name("hang").in_background()
app.schedule.shell("nosuchcommand").every(seconds=1).name("nosuch")
quoted = app.schedule.shell("printf '%s|'", "a b", "$(id)", "it's", '"', ";", {"day": "x y"})
quoted.every(seconds=1).output_to("quoted").name("quoted").without_overlapping()

@app.on(events.ScheduledTaskFailed)
def heard(event): note("failed", event.task, event.code)
"""


def scheduler(work: Procs) -> psutil.Process:
    return work.child("qd: scheduler")


@pytest.mark.leaves("qd:ticks", "qd:schedule:last", "qd:schedule:skipped")
@pytest.mark.leaves("queues:*")  # what `sends` has sent when the workers had left
def test_nothing_that_functions_and_commands_do_stops_the_scheduler(project: MakeProject):
    shop = project(jobs=JOBS + HARMFUL)
    witness = Witness(shop)
    shop.allowed.add("quoted")
    work = ready(shop)
    first = scheduler(work).pid
    codes = {"killed": -9, "left": 7, "raising": None, "copying": 8, "nosuch": 127, "hang": -9}
    for name, code in codes.items():
        witness.wait(f"failed {name} {code}", 2, seconds=20)
    for name in ("closing", "deaf", "sends"):
        work.wait_line(rf"schedule.done entry={name} ", 20, count=2)
    witness.wait("quick 7")
    assert scheduler(work).pid == first
    assert not work.matches("scheduler.died|schedule.refused")
    text = "a b|$(id)|it's|\"|;|--day=x y|"
    quoted = shop.root / "quoted"
    eventually(lambda: quoted.exists() and quoted.read_text() == text)  # not in the middle of a run
    work.stop()


LONG = """
app.schedule.shell("echo $$ > pids.new; setsid sh -c 'echo $$ >> pids.new; mv pids.new pids; sleep 300; true'; true").every(
    seconds=1
).name("long").without_overlapping()
"""


@pytest.fixture
def long(project: MakeProject) -> Project:
    shop = project(jobs=JOBS + LONG, config="[schedule]\nlease = 1.5\n")
    shop.allowed |= {"pids", "pids.new"}
    return shop


@pytest.mark.leaves("qd:ticks", "qd:schedule:last", "qd:schedule:skipped")
def test_a_scheduler_that_is_killed_takes_its_runs_along_and_the_next_one_runs_the_entry(long: Project, redis: Client):
    work = ready(long)
    pids = pids_in(long.root / "pids", 2)
    held = eventually(lambda: lease(redis, "long"))
    scheduler(work).kill()
    eventually(lambda: all(gone(pid) for pid in pids), 20, what="an end of what the dead scheduler ran")
    eventually(lambda: lease(redis, "long").get("owner") not in (None, held["owner"]), 20, what="a run of the next one")
    eventually(lambda: pids_in(long.root / "pids", 2) != pids, 20)
    finish(work, long)


def finish(work: Procs, shop: Project) -> None:
    """End the run by hand, so that the stop need not wait for it."""
    work.signal(signal.SIGTERM)
    for pid in pids_in(shop.root / "pids", 2):
        with suppress(ProcessLookupError):  # it ends with the one before, where the scheduler has seen that end
            os.kill(pid, signal.SIGKILL)
    work.ends_clean()


# `qd` whose scheduler ends its runs five seconds before it would be killed itself: time enough on a busy host.
IN_TIME = """
import sys
from qd.cli.main import main
from qd.scheduler import process as serve
serve.BEFORE_KILL = 5.0
sys.argv = ["qd", *sys.argv[4:]]  # after: python -m qd
main()
"""


@pytest.mark.leaves("qd:ticks", "qd:schedule:last", "qd:schedule:skipped")
def test_runs_still_alive_at_the_end_of_a_stop_are_ended_logged_and_free_their_lease(long: Project, redis: Client):
    work = long.work("-w", "1", "--stop-timeout", "6", within=[sys.executable, "-c", IN_TIME])
    pids = pids_in(long.root / "pids", 2)
    work.stop()
    work.wait_line('schedule.failed entry=long .*code=-9 error="ended: its scheduler stops"')
    eventually(lambda: all(gone(pid) for pid in pids), what="an end of what was killed")
    assert not lease(redis, "long")
