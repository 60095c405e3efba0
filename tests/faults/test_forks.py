"""Signals between a fork and the child's first steps: row 19."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.project import SOURCE
from tests.support.reliability import Figures

# A parent with a mailbox, and a thread that logs all the time, forks like the master. Each child is held between the fork
# and the installation of its handlers, and gets a signal there. The parent's handlers write to a pipe that both share.
FORKS = """
import logging, os, signal, sys, threading, time
from qd.log import JobRecords, Log
from qd.process import fork as child, signals

STOPPED = (signal.SIGTERM, signal.SIGQUIT)  # a new child may end, as by default
NOTHING = (signal.SIGHUP, signal.SIGINT, signal.SIGTTIN, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
EACH = (*STOPPED[:1], *NOTHING)
log, lines = Log("parent"), logging.getLogger("lines")
logging.getLogger().addHandler(JobRecords(log, dict))
mailbox = signals.Mailbox()
mailbox.open([*EACH, signal.SIGCHLD])
over = threading.Event()

def chatter():
    while not over.is_set():
        lines.warning("a line of another thread")
        log.info("thread.line")
        over.wait(0.0005)

def held(*more, first_steps=signals.deaf):
    deadline = time.monotonic() + 5
    while not signal.sigpending() and time.monotonic() < deadline:
        time.sleep(0.0005)
    first_steps(*more)

def body():
    lines.warning("a line of a child")
    log.of("child").info("child.line")
    return 7

signals.deaf = held
threading.Thread(target=chatter, daemon=True).start()
ends, strange = {}, []
for number in range(int(sys.argv[1])):
    sent = EACH[number % len(EACH)]
    pid = child.fork(body)
    os.kill(pid, sent)
    deadline = time.monotonic() + 10
    while child.ended() != pid:
        if time.monotonic() > deadline:
            sys.exit(f"child {number} hangs after {sent!r}")
        time.sleep(0.0005)
    status, _ = child.reap(pid)
    code = os.waitstatus_to_exitcode(status)
    if code != (-sent if sent in STOPPED else 7):
        strange.append((sent, code))
    strange += [(sent, "heard", heard) for heard in mailbox.read() if heard != signal.SIGCHLD]
over.set()
print(strange)
"""


@pytest.mark.fault(
    "19",
    "500 forks: each child is sent a signal before it has its own handlers, while another thread of its parent logs",
    "no child hangs, none runs its parent's handlers, the parent gets no signal",
)
def test_a_signal_before_a_childs_first_step_does_not_reach_its_parent(figures: Figures) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, "500"],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "[]\n"
    figures.add()
