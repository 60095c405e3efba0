"""A small scheduler for tests of runs: a process with Runs of its own that starts one run of each entry named, prints a line
of JSON for each that ended, and ends all at SIGTERM."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.support.clock import eventually
from tests.support.procs import QD, Procs
from tests.support.project import Project
from tests.support.resp import Client
from tests.support.witness import Witness

DRIVER = """
import json, os, signal, sys, time
sys.path.insert(0, os.getcwd())
from qd import config
from qd.drivers.connections import open_queue
from qd.log import Log
from qd.process import signals
from qd.scheduler.runs import Runs
from qd.store.base import beside
from qd.worker import boot
import jobs

def say(entry, **more):
    print(json.dumps({"entry": entry.name, **more}), flush=True)

def told(ended):
    for each in ended:
        say(each.entry, code=each.code, error=each.error, runtime=each.runtime, tick=each.tick)

log = Log("scheduler")
boot.log_job_records(log)
jobs.app.settings = settings = config.load(code=jobs.app._code_settings)
store = beside(open_queue(settings, settings.control))
runs = Runs(jobs.app, settings, log, store, hook_seconds=float(os.environ.get("HOOKS", "60")))
mailbox = signals.Mailbox()
mailbox.open([signal.SIGCHLD, signal.SIGTERM])
for word in sys.argv[1:]:
    entry = jobs.entries[word]
    if (why := runs.blocked_by(entry)) is not None:
        say(entry, waits=why)
    else:
        runs.start(entry, 1700000000.0, "token")
told(runs.reap())
runs.renew()
while runs.alive:
    if signal.SIGTERM in mailbox.wait(min(runs.due_in, 1.0)):
        told(runs.end())
    told(runs.reap())
    runs.renew()
"""

PRELUDE = """
import asyncio, ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
from qd import Qd, events
from qd.schedule.entry import CallTask, Entry, QdTask, ShellTask
from qd.schedule.timing import Every

app = Qd()
entries = {}

def note(*words):
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

def add(name, task, **more):
    task = ShellTask(task) if isinstance(task, str) else CallTask(task) if callable(task) else QdTask(task)
    hooks = {kind: (lambda kind=kind: note(name, kind),) for kind in ("before", "after", "on_success", "on_failure")}
    entries[name] = Entry(name, task, Every(60), **(hooks | more))

@app.on(events.ScheduledTaskStarting)
def starting(event): note(event.task, "Starting", event.at)

@app.on(events.ScheduledTaskFinished)
def finished(event): note(event.task, "Finished", event.runtime >= 0)

@app.on(events.ScheduledTaskFailed)
def failed(event): note(event.task, "Failed", event.code, event.error)

@app.on(events.ScheduledBackgroundTaskFinished)
def background(event): note(event.task, "Background", event.code)

"""


class Driven:
    """A project with entries, and what its drivers said."""

    def __init__(self, project: Project, source: str, config: str = "") -> None:
        self.project, self.root = project, project.root
        project.jobs(PRELUDE + textwrap.dedent(source))
        project.config(config)
        self.witness = Witness(project)

    def start(self, *names: str, **env: str) -> Procs:
        procs = Procs([QD[0], "-c", DRIVER, *names], cwd=self.root, env=self.project.env(**env))
        self.project.started.append(procs)
        return procs

    def run(self, *names: str, **env: str) -> Procs:
        """To its end, which is clean."""
        procs = self.start(*names, **env)
        procs.ends_clean()
        return procs

    def lines(self, name: str) -> list[str]:
        return [line.removeprefix(f"{name} ") for line in self.witness.lines if line.startswith(f"{name} ")]


Drive = Callable[..., Driven]


def told(procs: Procs) -> dict[str, dict[str, Any]]:
    """By entry: what the driver was told last."""
    found = [json.loads(line) for line in procs.output if line.startswith("{")]
    return {each["entry"]: each for each in found}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids_in(file: Path, count: int) -> list[int]:
    """Of processes that have written their own, once they are so many."""
    written = lambda: file.read_text().split() if file.exists() else []  # noqa: E731
    eventually(lambda: len(written()) >= count, 20, what=f"{count} pids in {file.name}")
    return [int(pid) for pid in written()]


def lease(redis: Client, name: str) -> dict[str, Any]:
    found = redis.text("GET", f"qd:overlap:{name}")
    return json.loads(found) if found else {}
