"""Runs of functions and commands: whatever they do, the scheduler lives, and hears how they ended.

`drive` starts a small scheduler: a process with Runs of its own that starts one run of each entry named, prints a line of
JSON for each that ended, and ends all at SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.clock import eventually
from tests.support.procs import QD, Procs
from tests.support.project import MakeProject, Project
from tests.support.resp import Client
from tests.support.witness import Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

DRIVER = """
import json, os, signal, sys, time
sys.path.insert(0, os.getcwd())
from qd import config
from qd.connectors.manager import open_queue
from qd.log import Log
from qd.process import signals
from qd.scheduler.runs import Runs
from qd.store.redis import beside
from qd.worker import boot
import jobs

def say(entry, **more):
    print(json.dumps({"entry": entry.name, **more}), flush=True)

def told(ended):
    for each in ended:
        say(each.entry, code=each.code, error=each.error, runtime=each.runtime, tick=each.tick)

log = Log("scheduler")
boot.log_job_records(log)
jobs.app.settings = settings = config.load(code=jobs.app.said)
store = beside(open_queue(settings, settings.control))
runs = Runs(jobs.app, settings, log, store, hook_seconds=float(os.environ.get("HOOKS", "60")))
mailbox = signals.Mailbox()
mailbox.open([signal.SIGCHLD, signal.SIGTERM])
for word in sys.argv[1:]:
    entry = jobs.entries[word]
    if (why := runs.waits(entry)) is not None:
        say(entry, waits=why)
    else:
        runs.start(entry, 1700000000.0, "token")
told(runs.reap())
runs.renew()
while runs.alive:
    if signal.SIGTERM in mailbox.wait(min(runs.wants, 1.0)):
        told(runs.end())
    told(runs.reap())
    runs.renew()
"""

PRELUDE = """
import asyncio, ctypes, os, signal, subprocess, sys, threading, time
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


@pytest.fixture
def drive(project: MakeProject) -> Drive:
    return lambda source, config="": Driven(project(), source, config)


def told(procs: Procs) -> dict[str, dict[str, Any]]:
    """By entry: what the driver was told last."""
    found = [json.loads(line) for line in procs.output if line.startswith("{")]
    return {each["entry"]: each for each in found}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


WELL = """
def body(): note("a body"); print("said by the function")
add("a", body)

async def later():
    await asyncio.sleep(0)
    note("b body")
add("b", later, background=True)

def leaves(): note("c body"); sys.exit(0)
add("c", leaves, background=True)

add("d", "echo d body >> witness; echo said by the shell")

class Object:
    async def __call__(self): note("e body")
async def earlier(): note("e before")
add("e", Object(), before=(earlier,))
"""


def test_what_ends_well_has_hooks_and_events_in_their_order(drive: Drive):
    driven = drive(WELL)
    work = driven.run("a", "b", "c", "d", "e")
    steps = ["Starting 1700000000.0", "before", "body", "after", "on_success", "Finished True"]
    assert [driven.lines(name) for name in "ade"] == [steps] * 3
    assert driven.lines("b") == [*steps, "Background None"]
    assert driven.lines("c") == [*steps, "Background 0"]
    codes = {name: (each["code"], each["error"]) for name, each in told(work).items()}
    assert codes == {"a": (None, ""), "b": (None, ""), "c": (0, ""), "d": (0, ""), "e": (None, "")}
    assert {"said by the function", "said by the shell"} <= set(work.output)
    at = "2023-11-14T22:13:20Z"
    started = work.wait_line(rf"INFO  scheduler\[\d+\] schedule.started entry=a at={at} pid=(\d+)$")
    work.wait_line(rf"INFO  scheduler\[\d+\] schedule.done entry=a at={at} took=0.\d+ pid={started[1]}$")


FAILURES = {
    "raises": ("async def raises(): raise ValueError('no paper') from OSError('jam')", None, "ValueError: no paper"),
    "odd": ("def odd(): raise ValueError(os.fsdecode(b'caf\\xe9'))", None, "ValueError: caf\\udce9"),
    "base": ("class Odd(BaseException): pass\ndef base(): raise Odd('odd')", None, "Odd: odd"),
    "leaves": ("def leaves(): sys.exit(3)", 3, "left with sys.exit(3)"),
    "says": ("def says(): sys.exit('no ink')", 1, "left with sys.exit('no ink')"),
    "vanishes": ("def vanishes(): os._exit(3)", 3, "left with exit code 3 before it returned (os._exit)"),
    "nought": ("def nought(): os._exit(0)", 0, "left with exit code 0 before it returned (os._exit)"),
    "killed": ("def killed(): os.kill(os.getpid(), 9)", -9, "signal 9 (SIGKILL)"),
    "ended": ("def ended(): os.kill(os.getpid(), 15)", -15, "signal 15 (SIGTERM)"),
    "faulty": ("def faulty(): ctypes.string_at(0)", -11, "signal 11 (SIGSEGV)"),
    "closes": ("def closes():\n  os.closerange(0, 4096); raise OSError('closed')", None, "OSError: closed"),
    "copies": ("def copies():\n  if os.fork(): os.wait(); raise OSError('mine')", None, "OSError: mine"),
    "three": ("three = 'echo one >&2; echo the reason >&2; exit 3'", 3, "exit code 3: the reason"),
    "shot": ("shot = 'kill -9 $$'", -9, "signal 9 (SIGKILL)"),
    "nosuch": ("nosuch = 'nosuchcommand now'", 127, "exit code 127: /bin/sh: 1: nosuchcommand: not found"),
    "command": ("command = ('nosuch',)", 2, "exit code 2: "),
}


def test_however_it_fails_it_is_told_once_and_the_scheduler_lives(drive: Drive):
    driven = drive("".join(f"{source}\nadd('{name}', {name})\n" for name, (source, _, _) in FAILURES.items()))
    work = driven.run(*FAILURES)
    for name, (_, code, error) in FAILURES.items():
        said = told(work)[name]
        assert said["code"] == code, said
        assert said["error"].startswith(error), said
        *steps, last = driven.lines(name)
        assert steps == ["Starting 1700000000.0", "before", "after", "on_failure"]
        assert last.encode("utf-8", "backslashreplace").decode().startswith(f"Failed {code} {error}")
        assert len(work.matches(rf"ERROR scheduler\[\d+\] schedule.failed entry={name} ")) == 1
    assert len([line for line in work.lines if line.strip() == "ValueError: no paper"]) == 1  # one traceback
    assert "OSError: jam" in [line.strip() for line in work.lines]
    assert not [line for line in work.lines if "asyncio" in line or "daemon/qd/" in line]


TREES = """
def function():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    subprocess.Popen(["sh", "-c", "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & sleep 300"])
    if os.fork() == 0:
        note("pid", os.getpid())
        time.sleep(300)
    time.sleep(300)

SHELL = "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & sleep 300; true"
add("function", function, timeout=0.5)
add("shell", SHELL, timeout=0.5)
add("quick", lambda: note("quick body"), timeout=0.5)
"""


def pids_in(file: Path, count: int) -> list[int]:
    """Of processes that have written their own, once they are so many."""
    written = lambda: file.read_text().split() if file.exists() else []  # noqa: E731
    eventually(lambda: len(written()) >= count, 10, what=f"{count} pids in {file.name}")
    return [int(pid) for pid in written()]


def test_a_run_over_its_timeout_is_killed_with_all_that_it_has_started(drive: Drive):
    driven = drive(TREES)
    driven.project.allowed.add("pids")
    work = driven.start("function", "shell", "quick")
    pids = pids_in(driven.root / "pids", 4)
    work.ends_clean()
    error = "ran longer than its timeout (0.5s)"
    for name in ("function", "shell"):
        assert {"code": -9, "error": error}.items() <= told(work)[name].items()
        assert 0.5 <= told(work)[name]["runtime"] < 5
        assert driven.lines(name)[2:] == ["after", "on_failure", f"Failed -9 {error}"]
    assert told(work)["quick"]["error"] == ""
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
    eventually((driven.root / "late").exists, 10)  # its stderr was no broken pipe
    work.wait_line("^late$")
    (runner,) = pids_in(driven.root / "runner", 1)
    os.kill(runner, signal.SIGKILL)
    assert work.process.wait(10) == 0
    assert eventually(lambda: told(work)["killed"]["error"] == "signal 9 (SIGKILL)")
    assert all(gone(pid) for pid in pids)
    left = [process for process in work.session() if "sleep 300" in " ".join(process.cmdline())]
    assert left
    work.sweep()


def test_runs_die_with_their_scheduler(drive: Drive):
    driven = drive("add('function', lambda: time.sleep(300))\nadd('shell', 'exec sleep 300')")
    work = driven.start("function", "shell")
    eventually(lambda: work.children("sleep 300") and driven.lines("function")[1:], 10)
    work.kill()
    eventually(lambda: not work.session(), 5, what="no run left")


def test_a_scheduler_that_ends_its_runs_hears_of_each_and_calls_no_hooks(drive: Drive):
    driven = drive("add('function', lambda: time.sleep(300))\nadd('shell', 'sleep 300; true')")
    work = driven.start("function", "shell")
    eventually(lambda: len(work.children("sleep 300")) >= 1 and driven.lines("function")[1:], 10)
    work.stop()
    assert {each["error"] for each in told(work).values()} == {"ended: its scheduler stops"}
    assert driven.lines("function") == ["Starting 1700000000.0", "before"]


OUTPUT = """
def prints(): print("from python"); os.system("echo from its child; echo and its stderr >&2")
def hook(): print("from a hook")
add("new", prints, output=Path("new.txt"), before=(hook,))
add("more", "echo more; echo why >&2; exit 4", output=Path("more.txt"), append=True)
add("folder", prints, output=Path("nowhere/at/all.txt"))
add("full", prints, output=Path("/dev/full"))
"""


def test_what_a_run_prints_goes_into_its_file(drive: Drive):
    driven = drive(OUTPUT)
    driven.project.allowed |= {"new.txt", "more.txt"}
    for name in ("new", "more"):
        (driven.root / f"{name}.txt").write_text("yesterday\n")
    work = driven.run("new", "more", "folder", "full")
    text = "from a hook\nfrom python\nfrom its child\nand its stderr\n"
    assert (driven.root / "new.txt").read_text() == text
    assert (driven.root / "more.txt").read_text() == "yesterday\nmore\nwhy\n"
    assert told(work)["more"]["error"] == "exit code 4: why"
    refused = f"its output cannot be written to {driven.root}/nowhere/at/all.txt: No such file or directory"
    assert told(work)["folder"]["error"] == refused
    assert driven.lines("folder")[1:] == ["before", "after", "on_failure", f"Failed None {refused}"]
    assert "OSError: [Errno 28] No space left on device" in told(work)["full"]["error"]
    assert not work.output[4:]


HOOKS = """
def bad(): raise RuntimeError("a bad hook")
def gone(): sys.exit(1)
def hangs(): note("hangs"); time.sleep(300)
def copy():
    if os.fork(): os.wait()

@app.on(events.ScheduledTaskFinished)
def angry(event): raise KeyboardInterrupt("a bad listener")

@app.on(events.ScheduledTaskFinished)
def hanging(event):
    if event.task == "deaf": hangs()

body = lambda: note("body")
add("raising", body, before=(bad, gone, copy), after=(bad,), on_success=(copy,))
add("before", body, before=(hangs,))
add("after", body, after=(hangs,))
add("deaf", body)
add("both", lambda: os._exit(1), after=(hangs,))
"""


def test_a_hook_or_listener_that_fails_or_hangs_changes_nothing(drive: Drive):
    driven = drive(HOOKS)
    work = driven.run("raising", "before", "after", "deaf", "both", HOOKS="0.5")
    ends = {name: each["error"] for name, each in told(work).items()}
    assert ends == {
        "raising": "",
        "before": "its hooks or listeners took more than 0.5s",
        "after": "",
        "deaf": "",
        "both": "left with exit code 1 before it returned (os._exit)",
    }
    assert len(driven.witness.starting("body")) == 3
    assert driven.lines("raising") == ["Starting 1700000000.0", "Finished True"]
    assert driven.lines("before")[-2:] == ["on_failure", f"Failed -9 {ends['before']}"]
    assert len(work.matches('schedule.hook_failed entry=raising hook=before error="RuntimeError: a bad hook"')) == 1
    assert len(work.matches('schedule.hook_failed entry=raising hook=before error="SystemExit: 1"')) == 1
    assert len(work.matches('schedule.hook_failed entry=raising hook=after error="RuntimeError: a bad hook"')) == 1
    for name in ("after", "deaf", "both"):
        reason = 'reason="its hooks or listeners took more than 0.5s"'
        assert len(work.matches(rf"schedule.hooks_cut entry={name} at=\S+ pid=\d+ {reason}")) == 1
    assert len(work.matches("the listener angry of ScheduledTaskFinished raised")) == 2


def test_a_function_may_send_jobs_and_a_command_of_qds_reads_the_same_configuration(drive: Drive, redis: Client):
    driven = drive(
        """
        @app.job("mail")
        def mail(n: int) -> None: ...
        add("send", lambda: mail.dispatch(7))
        add("list", ("jobs", "--json"), output=Path("list.json"))
        """
    )
    driven.project.allowed.add("list.json")
    driven.run("send")
    assert len(redis.text("LRANGE", "queues:default", "0", "-1")) == 1
    driven.run("list")
    assert "mail" in (driven.root / "list.json").read_text()
    redis.call("DEL", "queues:default", "queues:default:notify")


# -- without_overlapping

LONG = "[schedule]\nlease = 1.2\n"
ALONE = """
add("long", lambda: time.sleep(300), alone=True)
add("quick", lambda: None, alone=True)
add("local", lambda: time.sleep(300), alone=True, every_host=True)
"""


def lease(redis: Client, name: str) -> dict[str, Any]:
    found = redis.text("GET", f"qd:overlap:{name}")
    return json.loads(found) if found else {}


def test_an_entry_without_overlapping_runs_once_and_again_as_soon_as_its_run_was_killed(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long")
    eventually(lambda: lease(redis, "long").get("pid") not in (None, work.pid), 10)
    held = lease(redis, "long")
    assert int(work.wait_line(r"started entry=long at=\S+ pid=(\d+)")[1]) == held["pid"]
    assert redis.call("PTTL", "qd:overlap:long") <= 1200
    second = driven.run("long")
    assert told(second)["long"]["waits"].startswith(f"still running on {held['host']} (pid {held['pid']}) since ")
    until = time.monotonic() + 1.5  # longer than the lease: it is renewed
    while time.monotonic() < until:
        assert lease(redis, "long") == held
        time.sleep(0.05)
    os.kill(held["pid"], signal.SIGKILL)
    work.ends_clean()
    assert not lease(redis, "long")
    assert told(driven.run("quick"))["quick"]["error"] == ""
    assert not lease(redis, "quick")


def test_a_lease_ends_by_itself_when_its_scheduler_was_killed(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long", "local")
    host = eventually(lambda: lease(redis, "long").get("host"), 10)
    assert eventually(lambda: lease(redis, f"{host} local"), 10)
    work.kill()
    assert eventually(lambda: not redis.text("KEYS", "qd:overlap:*"), 5)


def test_a_lease_that_was_cleared_is_told_and_the_run_goes_on(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long")
    eventually(lambda: lease(redis, "long").get("pid") not in (None, work.pid), 10)
    redis.call("DEL", "qd:overlap:long")
    work.wait_line('schedule.lease_lost entry=long reason="somebody cleared it"')
    assert not lease(redis, "long")
    assert work.process.poll() is None
    work.stop()


def test_a_process_that_cannot_be_had_is_a_failed_run(drive: Drive):
    driven = drive(
        """
        from qd.process import child
        def refused(*given, **more): raise BlockingIOError(11, "Resource temporarily unavailable")
        child.fork = refused
        add("a", lambda: None, alone=True)
        """
    )
    work = driven.run("a")
    assert told(work)["a"]["code"] is None
    work.wait_line(
        'schedule.failed entry=a .*error="no process could be started for it: Resource temporarily unavailable"'
    )
