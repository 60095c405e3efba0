"""Runs and what they have started: ended with all of it when they are killed, left alone when they have finished."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.processes import titled
from tests.support.schedule import Drive, gone, last_reports, pids_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")

TREES = """
def function():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    subprocess.Popen(["sh", "-c", "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & sleep 300"])
    if os.fork() == 0:
        note("pid", os.getpid())
        time.sleep(300)
    time.sleep(300)

SHELL = "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & sleep 300; true"
add("function", function, timeout=3)
add("shell", SHELL, timeout=3)
add("quick", lambda: note("quick body"), timeout=3)
"""


def test_a_run_over_its_timeout_is_killed_with_all_that_it_has_started(drive: Drive):
    driven = drive(TREES)
    driven.project.allowed.add("pids")
    work = driven.start("function", "shell", "quick")
    pids = pids_in(driven.root / "pids", 4)
    work.ends_clean()
    error = "ran longer than its timeout (3s)"
    for name in ("function", "shell"):
        assert {"code": -9, "error": error}.items() <= last_reports(work)[name].items()
        assert 3 <= last_reports(work)[name]["runtime"] < 15
        assert driven.lines(name)[2:] == ["after", "on_failure", f"Failed -9 {error}"]
    assert last_reports(work)["quick"]["error"] == ""
    assert eventually(lambda: all(gone(pid) for pid in pids))


def test_what_a_killed_run_has_started_goes_with_it_and_what_a_finished_one_left_stays(drive: Drive):
    driven = drive(
        """
        SHELL = "echo $$ > pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & echo $PPID > runner; sleep 300; true"
        add("killed", SHELL)
        add("finished", "(while ! test -f go; do sleep 0.01; done; echo late >&2; echo > late; sleep 300; true) & true")
        """
    )
    driven.project.allowed |= {"pids", "runner", "late", "go"}
    work = driven.start("killed", "finished")
    pids = pids_in(driven.root / "pids", 2)
    work.wait_line("schedule.done entry=finished")
    (driven.root / "go").touch()
    eventually((driven.root / "late").exists, 20)  # its stderr was no broken pipe
    work.wait_line("^late$")
    (runner,) = pids_in(driven.root / "runner", 1)
    os.kill(runner, signal.SIGKILL)
    assert work.process.wait(10) == 0
    assert eventually(lambda: last_reports(work)["killed"]["error"] == "signal 9 (SIGKILL)")
    eventually(lambda: all(gone(pid) for pid in pids), what="an end of what was killed")
    left = [process for process in work.session() if "sleep 300" in titled(process)]
    assert left
    work.sweep()


def test_runs_die_with_their_scheduler(drive: Drive):
    driven = drive("add('function', lambda: time.sleep(300))\nadd('shell', 'exec sleep 300')")
    work = driven.start("function", "shell")
    eventually(lambda: work.children("sleep 300") and driven.lines("function")[1:], 20)
    work.kill()
    eventually(lambda: not work.session(), 20, what="no run left")


def test_a_scheduler_that_ends_its_runs_hears_of_each_and_calls_no_hooks(drive: Drive):
    driven = drive("add('function', lambda: time.sleep(300))\nadd('shell', 'sleep 300; true')")
    work = driven.start("function", "shell")
    eventually(lambda: len(work.children("sleep 300")) >= 1 and driven.lines("function")[1:], 20)
    work.stop()
    assert {each["error"] for each in last_reports(work).values()} == {"ended: its scheduler stops"}
    assert driven.lines("function") == ["Starting 1700000000.0", "before"]
