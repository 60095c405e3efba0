"""Workers that die or hang while they start: retried ever more slowly, and never left behind unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.payloads import push
from tests.support.processes import QD, Procs, control_group
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

# -- crash loops and a system without free processes


LEAVING = (
    JOBS
    + """
from qd import events

@app.on(events.Looping)
def look(event: events.Looping) -> None:
    if not Path("mended").exists():
        os._exit(7)
"""
)


@pytest.mark.usefixtures("clean_redis")
def test_workers_that_die_again_and_again_before_any_job_are_replaced_ever_more_slowly(
    project: MakeProject, redis: Client
) -> None:
    shop = project(jobs=LEAVING)
    witness = Witness(shop)
    shop.allowed.add("mended")
    work = shop.work("-w", "1")
    work.wait_line(r"worker.crash_loop .*deaths=2 retry_in=0.200", BROUGHT)
    work.wait_line(r"worker.crash_loop .*deaths=3 retry_in=0.400", BROUGHT)
    (shop.root / "mended").touch()
    push(redis, "quick")
    witness.wait("quick")
    start = len(work.lines)
    (shop.root / "mended").unlink()  # and the count starts again at zero
    work.wait_line(r"worker.crash_loop .*deaths=2 retry_in=0.200", start=start)
    work.stop()


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("preload", [True, False], ids=["template", "no template"])
def test_without_processes_to_be_had_those_that_are_there_serve(
    project: MakeProject, redis: Client, preload: bool
) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    with control_group("pids", f"qd-test-{os.getpid()}") as pids:
        with pids.joined():
            work = shop.work("-w", "2", *([] if preload else ["--no-preload"]))
        work.wait_line("master.ready")
        between = int(preload)  # a process between template and worker, which can be had: the worker itself cannot
        stay = 4 + int(
            preload
        )  # master, keeper, two workers; a template. Who forked the last worker may still be ending
        eventually(lambda: len(work.children("waiting on")) == 2 and len(work.children("keeper")) == 1, what="titles")
        eventually(lambda: len(pids.pids) == stay, what="only those that stay")
        pids.limit("pids.max", "pids.max", stay + between)
        for _ in range(6):
            work.signal(signal.SIGTTIN)
        work.wait_line("worker.fork_failed .*workers=2 retry_in=1.000")
        push(redis, "quick", count=20)
        witness.wait("quick", 20)
        pids.limit("pids.max", "pids.max", "max")
        eventually(lambda: len(work.children("waiting on")) == work_of(work.lines), 20, what="all that are wanted")
        work.stop()


@pytest.mark.usefixtures("clean_redis")
def test_a_start_without_a_process_to_be_had_is_tried_again(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    push(redis, "quick")
    with control_group("pids", f"qd-test-{os.getpid()}") as pids:
        pids.limit("pids.max", "pids.max", 1)
        inside = ["sh", "-c", f'echo $$ > {pids.folder}/cgroup.procs && exec "$@"', "sh", *QD]
        work = Procs([*inside, "work", "-w", "1"], cwd=shop.root, env=shop.env())
        shop.started.append(work)
        work.wait_line("template.fork_failed .*retry_in=1.000")
        pids.limit("pids.max", "pids.max", "max")
        work.wait_line("master.ready", 20)
        witness.wait("quick")
        work.stop()


def work_of(lines: list[str]) -> int:
    """Return the number of wanted workers according to the log."""
    return max((int(line.rpartition("workers=")[2]) for line in lines if "master.resized" in line), default=0)


# -- children that hang or are orphaned in the fork


PROGRAM = """
import os, signal, sys
from qd.process import fork as child, proc as vitals

HOW, FILE = sys.argv[1:]

def body():
    open(FILE, "w").close()
    return 0

def born(pid):
    if HOW == "killed between":
        os.kill(os.getpid(), signal.SIGKILL)
    print(pid, flush=True)

vitals.set_subreaper()
child.fork_for(os.getpid(), body, born)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@pytest.mark.parametrize(("how", "lives"), [("told", True), ("killed between", False)])
def test_a_child_runs_only_once_its_parent_has_reported_it(how: str, lives: bool, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    done = subprocess.run([sys.executable, "-c", PROGRAM, how, str(file)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is lives
    assert file.exists() is lives


# `qd` with a master that does not give up a worker that it never saw.
PATIENT = """
import runpy
from qd.master import children
children.SPAWN_PATIENCE = 1e9
runpy.run_module("qd", run_name="__main__", alter_sys=True)
"""
HANGS = """
import os, time
from qd import Qd

app = Qd()
template = os.getpid()

@app.job("quick")
def quick() -> None: ...

def hang() -> None:
    if %s:
        open(f"hangs.{os.getpid()}", "w").close()
        time.sleep(1000)

os.register_at_fork(after_in_child=hang)
"""


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("where", ["os.getppid() == template", "os.getppid() != template"], ids=["between", "worker"])
def test_a_library_that_hangs_in_the_fork_does_not_hold_up_a_stop(project: MakeProject, where: str) -> None:
    """Without a stop timeout: nothing else would end them."""
    shop = project(jobs=HANGS % where)
    words = [sys.executable, "-c", PATIENT, "work", "-w", "2", "--stop-timeout", "0"]
    work = Procs(words, cwd=shop.root, env=shop.env())
    shop.started.append(work)
    eventually(lambda: [*shop.root.glob("hangs.*")], 20, what="a child that hangs")
    work.stop()
    for file in shop.root.glob("hangs.*"):
        file.unlink()


# -- an app that hangs at import

SOON = """
import qd.master.code
from qd.cli.main import main
qd.master.code.PATIENCE = 0.5
main()
"""


def test_an_import_that_hangs_at_the_start_is_logged_and_shows_its_stack_on_usr1(project: MakeProject) -> None:
    shop = project(jobs="import time\ndef waits_for_a_lock():\n    time.sleep(1000)\nwaits_for_a_lock()\n")
    work = Procs([sys.executable, "-c", SOON, "work"], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    work.wait_line("template.slow")
    (match,) = work.matches(r"template\.slow pid=(\d+)")
    os.kill(int(match[1]), signal.SIGUSR1)
    work.wait_line("in waits_for_a_lock")
    work.stop()
