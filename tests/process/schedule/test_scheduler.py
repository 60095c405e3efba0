"""The scheduler as a child of `qd work` and of `qd schedule work`: started, watched, replaced, paused, drained, ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.payloads import push
from tests.support.processes import QD, Procs, titled
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves("qd:ticks", "qd:schedule:*", "qd:overlap:*"),
]

TICKING = (
    JOBS
    + """
def beat():
    note("beat", os.getppid())

app.schedule(beat, every=0.2, name="beat")
"""
)
# Two kinds of work at once, as long as the file `go` is missing.
LONG = (
    JOBS
    + """
import subprocess, sys

def backup():
    note("begin", os.getpid(), subprocess.Popen(["sleep", "1000"]).pid)
    held()
    note("end", os.getpid())

app.schedule(backup, every=1, name="backup").without_overlapping()
"""
)


# A master that bears silence for less than the ten seconds it takes Redis to be given up.
IMPATIENT = (
    sys.executable,
    "-c",
    "from qd.master import code as plan; plan.SILENCE = plan.ANSWER = 4.0\nfrom qd.cli.main import main; main()",
)


# One whose scheduler ends its runs long before it would be killed itself: time enough on a busy host.
IN_TIME = (
    sys.executable,
    "-c",
    "from qd.scheduler import process as serve; serve.BEFORE_KILL = 5.0\nfrom qd.cli.main import main; main()",
)


def scheduled(project: Project, *arguments: str, qd: Sequence[str] = QD) -> Procs:
    """`qd schedule work`, started."""
    work = Procs([*qd, "schedule", "work", *arguments], cwd=project.root, env=project.env())
    project.started.append(work)
    return work


def scheduler(work: Procs, but: int = 0) -> psutil.Process:
    """The one scheduler, waited for. but: one with another pid."""

    def found() -> psutil.Process | None:
        there = [child for child in work.children("qd: scheduler") if child.pid != but]
        return there[0] if len(there) == 1 else None

    return eventually(found, 20, what="one scheduler")


def ticks_of(work: Procs, event: str = "schedule.started") -> list[str]:
    """The moments of the ticks that were run, in the order of the log."""
    return [match[1] for match in work.matches(rf"{event} entry=\S+ at=(\S+)")]


# -- together with workers


def test_qd_work_runs_one_scheduler_that_does_not_count_as_a_worker(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = shop.work("-w", "2")
    witness.wait("beat", 2)
    eventually(lambda: titled(scheduler(work)) == "qd: scheduler with 1 entry", what="a title between two runs")
    assert work.matches("master.started .* workers=2 .* schedule=1")
    work.signal(signal.SIGTTOU)
    eventually(lambda: len(work.children("waiting on")) == 1, what="one worker")
    work.signal(signal.SIGTTIN)
    eventually(lambda: len(work.children("waiting on")) == 2, what="two workers")
    scheduler(work)  # one; what it has just forked is called alike for a moment
    work.signal(signal.SIGUSR1)
    work.wait_line(r"scheduler.state .*entries=1")
    work.wait_line("master.state workers=2 wanted=2")
    work.stop()


@pytest.mark.parametrize("how", [["--no-schedule"], ["--once"], ["--stop-when-empty-for", "0.5"]])
def test_what_runs_no_scheduler(project: MakeProject, redis: Client, how: list[str]) -> None:
    work = project(jobs=TICKING).work("-w", "1", "--sleep", "0.5", *how)
    if how[0] == "--no-schedule":
        work.wait_line("master.ready")
        work.stop()
    else:
        work.ends_clean()
    assert not work.matches("schedule.started")
    assert not redis.call("EXISTS", "qd:ticks")


def test_no_scheduler_runs_without_an_entry_of_this_environment(project: MakeProject) -> None:
    source = TICKING.replace('name="beat")', 'name="beat").environments("production")')
    here = project(jobs=source)
    here.allowed.add("witness")
    work = here.work("-w", "1", QD_ENV="staging")
    work.wait_line("master.ready")
    eventually(lambda: work.children("waiting on"))
    assert not work.children("qd: scheduler")
    work.stop()
    there = here.work("-w", "1", QD_ENV="production")
    there.wait_line("schedule.started")
    there.stop()


def test_worker_of_an_app_without_entries_does_not_load_the_scheduler(project: MakeProject, redis: Client) -> None:
    source = (
        JOBS
        + """
import sys

@app.job("loaded")
def loaded() -> None:
    note("loaded", *(name for name in ("qd.scheduler",) if name in sys.modules))
"""
    )
    shop = project(jobs=source)
    shop.fresh = True  # what it imports is the point
    witness = Witness(shop)
    work = shop.work("-w", "1")
    push(redis, "loaded")
    assert witness.wait("loaded") == ["loaded"]
    work.stop()


@pytest.mark.parametrize("way", [["work", "-w", "1"], ["schedule", "work"], ["schedule", "work", "--no-preload"]])
def test_entries_that_do_not_check_end_the_start_with_one_line(project: MakeProject, way: list[str]) -> None:
    shop = project(jobs=JOBS + "\napp.schedule(lambda: 1, every=1)\n")
    work = Procs([*QD, *way], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    work.ends_clean(code=3)
    (line,) = work.matches("app.import_failed")
    assert "jobs.py" in line.string


# -- watched


def test_killed_scheduler_is_replaced_and_no_tick_comes_twice(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = shop.work("-w", "1")
    for kills in (1, 2):
        old = scheduler(work)
        there = len(witness.starting("beat"))
        witness.wait("beat", there + 2)
        old.kill()
        work.wait_line(f'scheduler.died .*pid={old.pid} how="signal 9 .SIGKILL."', count=1)
        new = scheduler(work, but=old.pid)
        witness.wait(f"beat {new.pid}", 2)
        assert len(work.matches("scheduler.died")) == kills
    work.stop()
    started = ticks_of(work)
    assert len(started) == len(set(started)) >= 6
    assert not work.matches("worker.died|job.requeued")


STUCK = """
import ctypes
from qd.events import ScheduledTaskSkipped

@app.on(ScheduledTaskSkipped)
def hang(event):
    if Path("hang").exists():
        Path("hang").unlink()
        note("hangs", os.getpid())
        mutex, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        c.pthread_mutex_lock(mutex)
        c.pthread_mutex_lock(mutex)  # for ever, with the GIL: no handler of Python's runs

app.schedule(beat, every=0.5, name="never").when(False)
"""


def test_a_scheduler_that_hangs_is_killed_and_replaced(project: MakeProject, tmp_path: Path) -> None:
    """Stopped, or stuck in C in the app's own code."""
    shop = project(jobs=TICKING + STUCK, config="[worker]\nsleep = 0.1")
    witness = Witness(shop)
    shop.allowed.add("hang")
    stopped, stuck = scheduled(shop, qd=IMPATIENT), scheduled(shop, qd=IMPATIENT)
    for work in (stopped, stuck):
        work.wait_line("master.ready")  # a master sends CONT to who has just come
    first = scheduler(stopped)
    first.suspend()
    (shop.root / "hang").touch()
    hanging = int(witness.wait("hangs")[0].split()[1])
    assert hanging == scheduler(stuck).pid
    for work, pid in ((stopped, first.pid), (stuck, hanging)):
        work.wait_line(f"scheduler.silent .*pid={pid} ", 40)
        line = work.wait_line(f'scheduler.died .*pid={pid} how="signal 9 .SIGKILL." reason="stopped answering"')
        witness.wait(f"beat {scheduler(work, but=pid).pid}")
        assert work is stopped or "jobs.py" in "\n".join(work.lines[work.lines.index(line.string) :][:20])
    for work in (stopped, stuck):
        work.stop()


def test_with_no_respawn_the_death_of_the_scheduler_ends_the_program_and_is_the_reason(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = scheduled(shop, "--no-respawn")
    witness.wait("beat")
    scheduler(work).kill()
    work.ends_clean(code=1)
    assert work.matches('master.stopping reason="no respawn: a scheduler left with signal 9')


LEAVES = """
from qd.events import ScheduledTaskSkipped

@app.on(ScheduledTaskSkipped)
def leave(event):
    if Path("leave").exists():
        Path("leave").unlink()
        os._exit(3)

app.schedule(beat, every=0.5, name="never").when(False)
"""


def test_a_scheduler_that_the_apps_own_code_ended_names_the_entry_whose_turn_it_was(project: MakeProject) -> None:
    shop = project(jobs=TICKING + LEAVES)
    witness = Witness(shop)
    shop.allowed.add("leave")
    work = scheduled(shop)
    witness.wait("beat")
    first = scheduler(work).pid
    (shop.root / "leave").touch()
    line = work.wait_line(f'scheduler.died .*pid={first} how="left with exit code 3 .os._exit or sys.exit.".*')
    assert " entry=never" in line[0]
    witness.wait(f"beat {scheduler(work, but=first).pid}")
    work.stop()


@pytest.mark.leaves("qd:masters")
def test_killed_master_takes_scheduler_and_runs_with_it(project: MakeProject) -> None:
    shop = project(jobs=LONG)
    witness = Witness(shop)
    work = scheduled(shop)
    runner, sleeper = map(int, witness.wait("begin")[0].split()[1:])
    family = [*work.children(), psutil.Process(sleeper)]
    assert runner in [each.pid for each in family]
    work.kill()
    _, left = psutil.wait_procs([each for each in family if each.pid != sleeper], timeout=5)
    assert not left
    assert psutil.pid_exists(sleeper)  # no process was left to end it
    later = scheduled(shop)
    eventually(lambda: not psutil.pid_exists(sleeper), what="an end of what the dead one's run had started")
    later.stop()


# -- steered


def test_pause_and_resume(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = scheduled(shop)
    witness.wait("beat", 2)
    work.signal(signal.SIGUSR2)
    work.wait_line("master.paused")
    eventually(lambda: "paused" in titled(scheduler(work)), what="a paused scheduler")
    there = len(witness.lines)  # the title shows the pause only when nothing runs
    old = scheduler(work)
    old.kill()  # the next one starts paused
    new = scheduler(work, but=old.pid)
    eventually(lambda: "paused" in titled(new), what="a paused scheduler")
    assert len(witness.lines) == there
    work.signal(signal.SIGCONT)
    witness.wait("beat", there + 2)
    work.stop()


def test_in_maintenance_mode_it_waits_and_paused_it_is_idle(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    shop.allowed.add("witness")  # a beat may run before maintenance mode begins
    work = scheduled(shop)
    shop.qd("down")
    eventually(lambda: "down" in titled(scheduler(work)), what="a scheduler that waits for the end of maintenance mode")
    work.signal(signal.SIGUSR1)
    work.wait_line("scheduler.state .*state=waiting")
    work.signal(signal.SIGUSR2)
    eventually(lambda: "paused" in titled(scheduler(work)), what="a paused scheduler")
    work.signal(signal.SIGUSR1)
    work.wait_line("scheduler.state .*state=idle")
    shop.qd("up")
    work.stop()


def test_rolling_restart_takes_the_entries_of_the_new_code(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = shop.work("-w", "1")
    witness.wait("beat")
    old = scheduler(work)
    shop.jobs(TICKING.replace('note("beat"', 'note("new"').replace('"beat")', '"other")'))
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    witness.wait("new", 2)
    assert scheduler(work).pid != old.pid
    shop.jobs(JOBS)  # none is declared any more
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded", count=2)
    eventually(lambda: not work.children("qd: scheduler"), what="no scheduler")
    shop.jobs(TICKING)
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded", count=3)
    witness.wait(f"beat {scheduler(work).pid}")
    shop.jobs(TICKING + "\napp.schedule(beat, every=-1)\n")
    work.signal(signal.SIGHUP)
    work.wait_line("master.reload_refused")
    there = len(witness.starting("beat"))
    witness.wait("beat", there + 1)
    work.stop()


def test_after_a_rolling_restart_the_old_scheduler_stays_for_what_it_runs(project: MakeProject) -> None:
    shop = project(jobs=LONG)
    witness = Witness(shop)
    shop.allowed.add("go")
    work = scheduled(shop)
    (begun,) = witness.wait("begin")
    old = scheduler(work)
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    new = eventually(lambda: [s for s in work.children("qd: scheduler") if s.pid != old.pid], what="a new scheduler")
    work.wait_line(rf"scheduler.{new[0].pid}. schedule.skipped entry=backup .*still running on")
    assert old.is_running()
    assert len(witness.starting("begin")) == 1
    (shop.root / "go").touch()
    eventually(lambda: not old.is_running(), what="an end of the old scheduler")
    assert witness.starting("end")[0] == f"end {begun.split()[1]}"
    witness.wait("begin", 2)
    assert scheduler(work).pid == new[0].pid
    work.stop()


def test_stop_waits_for_what_runs(project: MakeProject) -> None:
    shop = project(jobs=LONG)
    witness = Witness(shop)
    shop.allowed.add("go")
    work = scheduled(shop)
    (begun,) = witness.wait("begin")
    eventually(lambda: "backup since" in titled(scheduler(work)), what="a title that tells what runs")
    work.signal(signal.SIGUSR1)
    work.wait_line("scheduler.state .*state=busy entries=1 run=backup")
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping .*running=1")
    (shop.root / "go").touch()
    work.ends_clean()
    assert witness.lines == [begun, f"end {begun.split()[1]}"]
    assert work.matches("schedule.done entry=backup")


@pytest.mark.parametrize("stands_still", [False, True])
def test_what_runs_is_ended_at_the_stop_deadline_with_all_that_it_started(
    project: MakeProject, stands_still: bool
) -> None:
    shop = project(jobs=LONG)
    witness = Witness(shop)
    patience, qd = ("1", QD) if stands_still else ("6", IN_TIME)
    work = scheduled(shop, "--stop-timeout", patience, qd=qd)
    runner, sleeper = map(int, witness.wait("begin")[0].split()[1:])
    if stands_still:
        work.wait_line("master.ready")
        eventually(lambda: "backup since" in titled(scheduler(work)), what="a scheduler that knows of its run")
        scheduler(work).suspend()
    work.signal(signal.SIGTERM)
    work.ends_clean()
    event = 'scheduler.ended .* reason="stop deadline" .*run=backup' if stands_still else "schedule.failed entry=backup"
    assert work.matches(event)
    eventually(lambda: not [pid for pid in (runner, sleeper) if psutil.pid_exists(pid)], what="an end of both")
    assert not witness.starting("end")


# -- qd schedule work


def test_without_entries_it_says_so_and_waits_for_new_code(project: MakeProject) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    work = scheduled(shop)
    work.wait_line("schedule.empty")
    work.wait_line("master.ready")
    eventually(lambda: "with 0 entries" in titled(scheduler(work)), what="its title")
    shop.jobs(TICKING)
    work.signal(signal.SIGHUP)
    witness.wait("beat")
    work.signal(signal.SIGTTIN)
    work.wait_line("master.resized workers=0")
    work.stop()


def test_it_takes_no_jobs_and_reports_no_queue(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=TICKING, config="[pools.night]\nstop_timeout = 3")
    witness = Witness(shop)
    work = scheduled(shop, "--pool", "night")
    witness.wait("beat")
    reports = lambda: [json.loads(raw) for raw in redis.hash("qd:masters").values()]  # noqa: E731
    (reported,) = eventually(
        lambda: [one for one in reports() if [each["entries"] for each in one["schedulers"]] == [1]], what="a report"
    )
    assert (reported["pool"], reported["queues"], reported["workers"]) == ("night", [], [])
    (reported,) = reported["schedulers"]
    assert (reported["pid"], reported["entries"]) == (scheduler(work).pid, 1)
    assert titled(psutil.Process(work.pid)).startswith("qd: master [night] scheduler")
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping .*deadline=3")
    work.ends_clean()


@pytest.mark.leaves("qd:restart")
def test_restart_stamp_ends_it_with_0(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = scheduled(shop)
    witness.wait("beat")
    eventually(lambda: work.children("qd: keeper"))
    assert shop.qd("restart").returncode == 0
    work.ends_clean()
    assert work.matches('master.stopping reason="qd restart"')


def test_the_scheduler_that_imports_by_itself_is_forked_from_the_master(project: MakeProject) -> None:
    shop = project(jobs=TICKING)
    witness = Witness(shop)
    work = scheduled(shop, "--no-preload")
    witness.wait("beat")
    assert not work.children("template")
    old = scheduler(work)
    os.kill(old.pid, signal.SIGKILL)
    witness.wait(f"beat {scheduler(work, but=old.pid).pid}")
    shop.jobs(TICKING.replace('note("beat"', 'note("new"'))
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    witness.wait("new")
    work.stop()


def test_a_scheduler_that_has_grown_is_replaced_between_two_runs(project: MakeProject) -> None:
    grows = """
from qd.events import ScheduledTaskSkipped
kept = []

@app.on(ScheduledTaskSkipped)
def grow(event):
    if Path("grows").exists():
        kept.append(bytearray(b"x" * (4 << 20)))

app.schedule(beat, every=0.2, name="never").when(False)
"""
    shop = project(jobs=TICKING + grows, config='[worker]\nmemory = "10M"')
    witness = Witness(shop)
    shop.allowed.add("grows")
    (shop.root / "grows").touch()
    work = scheduled(shop, "--log-level", "debug")
    work.wait_line("scheduler.left .*exit 12 .memory.")
    (shop.root / "grows").unlink()
    before = len(witness.starting("beat"))
    witness.wait("beat", before + 5)
    assert not work.matches("scheduler.died")
    work.stop()
    started = [match[0] for match in work.matches(r"schedule.started entry=\S+ at=\S+")]
    assert len(started) == len(set(started))
