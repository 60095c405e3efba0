"""fork() with text in the buffer of stdout, and without a stdout."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORKS = """
import os, sys
from qd.process import fork
{before}
for _ in range(3):
    os.waitpid(fork.fork(lambda: 7), 0)
sys.stderr.write("done")
"""


def run(before: str) -> subprocess.CompletedProcess[str]:
    code, env = FORKS.format(before=before), {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_was_printed_before_is_written_once():
    done = run("print('once')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "done")


@pytest.mark.parametrize("before", ["sys.stdout = None", "sys.stdout.close()", "print(1); os.close(1)"])
def test_a_stdout_that_cannot_be_flushed_is_left_alone(before: str):
    assert run(before).stderr.startswith("done")
