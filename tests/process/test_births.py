"""A worker whose birth nobody was told of does not live: its master could neither see nor end it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from qd.process import child, vitals

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
