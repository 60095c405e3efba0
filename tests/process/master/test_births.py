"""A worker whose birth nobody was told of does not live: its master could neither see nor end it. One that hangs while it is
born does not hold up a stop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import Procs
from tests.support.project import MakeProject
from tests.support.waiting import eventually

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
def test_a_child_runs_only_when_its_birth_was_told(how: str, lives: bool, tmp_path: Path) -> None:
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
