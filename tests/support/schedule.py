"""Schedules under test: a scheduler inside the test's process, whose turns the test makes, and projects with entries
whose runs are started by a driver program.

`Host` keeps the log lines of its scheduler; the functions after it read what was sent and where the app's one entry is.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from qd import Qd
from qd.config.load import load
from qd.log import Log
from qd.payload.format import Payload, read
from qd.schedule.entry import Entry
from qd.scheduler.scheduler import Scheduler
from tests.support.processes import QD, Procs
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import Witness

HOUR = 3600.0


class Host:
    """A scheduler for `app` and its schedule on `server`. More arguments are passed to Scheduler."""

    def __init__(self, app: Qd, server: Server, name: str = "web1", **more: Any) -> None:
        self.app, self.lines = app, list[str]()
        if not app._services._settings:
            app.settings = load(code={"url": server.url}, environ={})
        log = Log("scheduler", write=lambda line: self.lines.append(line.decode().partition("] ")[2].strip()))
        entries = more.pop("entries", None) or app.schedule.entries()
        self.scheduler = Scheduler(app, app.settings, log, entries=entries, host=name, **more)

    def turns(self, until: Callable[[], object], seconds: float = 60.0) -> None:
        """Make turns at the pace of the real loop until `until` is true."""
        due = 0.0

        def turned() -> object:
            nonlocal due
            if time.monotonic() >= due:
                wait = self.scheduler.turn()
                due = time.monotonic() + (0.0 if self.scheduler.runs.alive or self.scheduler._filters else wait)
            return until()

        eventually(turned, seconds, every=0.002)

    def logged(self, word: str) -> list[str]:
        """Its log lines of this event."""
        return [line for line in self.lines if line.partition(" ")[0] == word]

    def close(self) -> None:
        self.scheduler.end()
        self.scheduler.close()
        self.app.connections.close()


Open = Callable[..., Host]


def ready_payloads(redis: Client, queue: str = "default") -> list[Payload]:
    return [read(raw) for raw in redis.call("LRANGE", f"queues:{queue}", 0, -1)]


def last_tick(redis: Client, app: Qd, ago: float, mark: str = "") -> None:
    """Store a last tick of the app's one entry, this many seconds ago."""
    (entry,) = app.schedule.entries()
    redis.call("HSET", "qd:ticks", entry.name, f"{round((time.time() - ago) * 1000)} x {mark or entry.timing.mark}")


def field(redis: Client, app: Qd) -> str:
    """The stored state of the app's one entry; "" if there is none."""
    (entry,) = app.schedule.entries()
    return str(redis.text("HGET", "qd:ticks", entry.name) or "")


def moment_of(redis: Client, app: Qd) -> float:
    """The last tick of the app's one entry, in unix seconds."""
    return int(field(redis, app).split()[0] or 0) / 1000


class HalfAnHourAgo:
    """An hourly timing whose last tick was half an hour ago."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self) -> None:
        self.base = round(time.time() - HOUR / 2)

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


def hourly(app: Qd, timing: HalfAnHourAgo | None = None) -> list[Entry]:
    """The app's entries with this timing, so that a test also works at the full hour. Two apps must share one `timing`,
    because a new second may begin between two calls."""
    timing = timing or HalfAnHourAgo()
    return [replace(entry, timing=timing) for entry in app.schedule.entries()]


DRIVER = """
import json, os, signal, sys, time
sys.path.insert(0, os.getcwd())
from qd import config
from qd.drivers.connections import open_queue
from qd.log import Log
from qd.process import signals
from qd.scheduler.runner import RunContext
from qd.scheduler.runs import Runs
from qd.store.base import keyspace_store
from qd.worker import boot
import jobs

def say(entry, **more):
    print(json.dumps({"entry": entry.name, **more}), flush=True)

def report(ended):
    for each in ended:
        say(each.entry, code=each.code, error=each.error, runtime=each.runtime, tick=each.tick)

log = Log("scheduler")
boot.log_job_records(log)
jobs.app.settings = settings = config.load(code=jobs.app._code_settings)
store = keyspace_store(open_queue(settings, settings.control))
runs = Runs(RunContext(jobs.app, settings, log, "token"), store, hook_seconds=float(os.environ.get("HOOKS", "60")))
mailbox = signals.Mailbox()
mailbox.open([signal.SIGCHLD, signal.SIGTERM])
for word in sys.argv[1:]:
    entry = jobs.entries[word]
    if (why := runs.blocked_by(entry)) is not None:
        say(entry, waits=why)
    else:
        runs.start(entry, 1700000000.0)
report(runs.reap())
runs.overlaps.renew()
while runs.alive:
    if signal.SIGTERM in mailbox.wait(min(runs.due_in, 1.0)):
        report(runs.end())
    report(runs.reap())
    runs.overlaps.renew()
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


class ScheduleProject:
    """A project with entries, and the output of its driver programs."""

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
        """Run the driver to its end, which must be clean."""
        procs = self.start(*names, **env)
        procs.ends_clean()
        return procs

    def lines(self, name: str) -> list[str]:
        return [line.removeprefix(f"{name} ") for line in self.witness.lines if line.startswith(f"{name} ")]


Drive = Callable[..., ScheduleProject]


def last_reports(procs: Procs) -> dict[str, dict[str, Any]]:
    """The last report of the driver for each entry."""
    found = [json.loads(line) for line in procs.output if line.startswith("{")]
    return {each["entry"]: each for each in found}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids_in(file: Path, count: int) -> list[int]:
    """Wait until `count` processes have written their pids to the file, and return them."""
    written = lambda: file.read_text().split() if file.exists() else []  # noqa: E731
    eventually(lambda: len(written()) >= count, 20, what=f"{count} pids in {file.name}")
    return [int(pid) for pid in written()]


def lease(redis: Client, name: str) -> dict[str, Any]:
    found = redis.text("GET", f"qd:overlap:{name}")
    return json.loads(found) if found else {}
