"""Runs of functions and commands: whatever they do, the scheduler lives, and hears how they ended.

`driver` is a small scheduler: a process with Runs of its own that starts one run of each entry named, and prints a line of
JSON for each that ended.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.procs import QD, Procs
from tests.support.project import MakeProject, Project
from tests.support.witness import Witness

DRIVER = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, os.getcwd())
from qd import config
from qd.log import Log
from qd.connectors.manager import open_queue
from qd.connectors.redis.queue import RedisQueue
from qd.process import signals
from qd.scheduler.runs import Runs
from qd.store.redis import beside
import jobs

settings = config.load(code=jobs.app.said)
jobs.app.settings = settings
store = beside(open_queue(settings, settings.control))
runs = Runs(jobs.app, settings, Log("scheduler"), store, hook_seconds=float(os.environ.get("HOOKS", "60")))
mailbox = signals.Mailbox()
import signal
mailbox.open([signal.SIGCHLD, signal.SIGTERM])
for word in sys.argv[1:]:
    entry = jobs.entries[word]
    why = runs.waits(entry)
    if why is not None:
        print(json.dumps({"entry": entry.name, "waits": why}), flush=True)
        continue
    runs.start(entry, 1700000000.0, "token")
took = []
while runs.alive:
    for ended in runs.reap():
        said = {"entry": ended.entry.name, "code": ended.code, "error": ended.error, "runtime": ended.runtime}
        print(json.dumps(said), flush=True)
    runs.renew()
    if runs.alive:
        if signal.SIGTERM in mailbox.wait(min(runs.wants, 1.0)):
            for ended in runs.end():
                print(json.dumps({"entry": ended.entry.name, "code": ended.code, "error": ended.error}), flush=True)
"""

PRELUDE = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from qd import Qd, events
from qd.schedule import CallTask, Entry, QdTask, ShellTask
from qd.schedule.timing import Every

app = Qd()
entries = {}

def note(*words):
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

def hook(word):
    return lambda: note(word)

HOOKS = {kind: (hook(kind),) for kind in ("before", "after", "on_success", "on_failure")}

def add(name, task, **more):
    task = ShellTask(task) if isinstance(task, str) else CallTask(task) if callable(task) else QdTask(task)
    entries[name] = Entry(name, task, Every(60), **(HOOKS | more))

@app.on(events.ScheduledTaskStarting)
def starting(event): note("Starting", event.task)

@app.on(events.ScheduledTaskFinished)
def finished(event): note("Finished", event.task)

@app.on(events.ScheduledTaskFailed)
def failed(event): note("Failed", event.task, event.code, event.error)

@app.on(events.ScheduledBackgroundTaskFinished)
def background(event): note("Background", event.task, event.code)

"""

Drive = Callable[..., Procs]


@pytest.fixture
def drive(project: MakeProject) -> Callable[[str], tuple[Project, Drive]]:
    """drive(source) -> the project and a function that starts the driver on the entries named."""

    def make(source: str) -> tuple[Project, Drive]:
        shop = project(jobs=PRELUDE + textwrap.dedent(source))
        shop.allowed.add("witness")

        def start(*names: str, **env: str) -> Procs:
            procs = Procs([QD[0], "-c", DRIVER, *names], cwd=shop.root, env=shop.env(**env))
            shop.started.append(procs)
            return procs

        return shop, start

    return make


def told(procs: Procs) -> list[dict[str, Any]]:
    return [json.loads(line) for line in procs.output if line.startswith("{")]


WELL = ["before", "body", "after", "on_success", "Finished a"]


def test_a_function_that_returns_has_all_its_hooks_in_order(drive) -> None:
    shop, start = drive("add('a', lambda: note('body'), background=True)")
    procs = start("a")
    procs.ends_clean()
    assert told(procs)[0] | {"runtime": 0} == {"entry": "a", "code": None, "error": "", "runtime": 0}
    assert Witness(shop).lines == ["Starting a", *WELL, "Background a None"]
    procs.wait_line(r"INFO  scheduler\[\d+\] schedule.started entry=a at=2023-11-14T22:13:20Z pid=\d+$")
    procs.wait_line(r"INFO  scheduler\[\d+\] schedule.done entry=a at=2023-11-14T22:13:20Z took=0.\d+ pid=\d+$")


FAILURES = {
    "raises": ("def body(): note('body'); raise ValueError('no paper')", None, "ValueError: no paper"),
    "base": ("class Odd(BaseException): pass\ndef body(): note('body'); raise Odd('odd')", None, "Odd: odd"),
    "leaves": ("def body(): note('body'); sys.exit(3)", 3, "left with sys.exit(3)"),
    "vanishes": ("def body(): note('body'); os._exit(3)", 3, "left with exit code 3 before it returned (os._exit)"),
    "killed": ("def body(): note('body'); os.kill(os.getpid(), 9)", -9, "signal 9 (SIGKILL)"),
    "segfaults": ("import ctypes\ndef body(): note('body'); ctypes.string_at(0)", -11, "signal 11 (SIGSEGV)"),
}


@pytest.mark.parametrize("way", FAILURES)
def test_however_a_function_fails_it_is_told_once(drive, way: str) -> None:
    source, code, error = FAILURES[way]
    shop, start = drive(source + "\nadd('a', body)")
    procs = start("a")
    procs.ends_clean()
    assert told(procs)[0] | {"runtime": 0} == {"entry": "a", "code": code, "error": error, "runtime": 0}
    lines = ["Starting a", "before", "body", "after", "on_failure", f"Failed a {code} {error}"]
    assert Witness(shop).lines == lines
    assert len(procs.matches("schedule.failed entry=a")) == 1
