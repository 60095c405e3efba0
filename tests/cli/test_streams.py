"""A closed or full stdout changes neither what a command does nor its exit code. And a deleted current folder."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qd.cli import output
from tests.cli.test_main import leaves
from tests.support.processes import QD
from tests.support.project import Project
from tests.support.redis import Client

Projects = Callable[..., Project]
JOBS = """
@app.job("mail.welcome")
def welcome(to: str) -> str:
    print("to", to, flush=True)
    return to

app.schedule(welcome.bind("a@b.c"), name="daily").daily()
"""
# Commands with arguments that give the same exit code each time.
WORDS = {
    "work": "-w 1 --stop-when-empty",
    "dispatch": "mail.welcome to=a@b.c",
    "run": "mail.welcome to=a@b.c",
    "job": "nowhere",
    "clear": "old",
    "cancel": "nowhere",
    "pause": "mail",
    "resume": "mail",
    "init": "supervisord",
    "failed retry": "--all --dry-run",
    "failed forget": "--all --dry-run",
    "failed show": "nowhere",
    "schedule work": "--pool nowhere",
    "schedule test": "daily",
}
# Runs every command in a fork: importing qd for each of them would take a second.
DRIVER = """
import json, os, sys, traceback
import qd.app, qd.dispatch.dispatcher, qd.drivers.redis.queue, qd.daemon
from qd.cli import main

modes = {"plain": os.devnull, "full": "/dev/full", "closed": None}

def run(words, path, said):
    sys.argv = ["qd", *words]
    os.dup2(said, 2)
    if path is None:
        os.close(1)
        sys.stdout = None
    else:
        os.dup2(os.open(path, os.O_WRONLY), 1)
    main.main()

def ended(words, path):
    heard, said = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            run(words, path, said)
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:
            traceback.print_exc()
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError as error:
            code = 120  # as Python itself
        os._exit(code)
    os.close(said)
    text = b"".join(iter(lambda: os.read(heard, 4096), b""))
    os.close(heard)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text.decode()

for name in main.COMMANDS:
    main.Family.get_command(main.command, None, name)
for line in sys.stdin:
    words = json.loads(line)
    print(json.dumps({mode: ended(words, path) for mode, path in modes.items()}), flush=True)
"""
LOST = "qd: stdout: No space left on device; the rest of the output is lost"


def test_every_command_keeps_its_exit_code_if_stdout_is_closed_or_full(project: Projects, redis: Client) -> None:
    shop = project(JOBS)
    commands = [[*name.split(), *WORDS.get(name, "").split()] for name, _ in leaves()] + [["--version"], ["--help"]]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=shop.root, env=shop.env(), input="\n".join(map(json.dumps, commands)),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    ends = dict(zip(map(" ".join, commands), map(json.loads, done.stdout.splitlines()), strict=True))
    for name, end in ends.items():
        assert {code for code, _ in end.values()} == {end["plain"][0]}, (name, end)
        assert "Traceback" not in "".join(text for _, text in end.values()), (name, end)
    printed = [name for name, end in ends.items() if LOST in end["full"][1]]
    assert len(printed) > 25, printed
    assert not [name for name, end in ends.items() if end["full"][1].count(LOST) > 1 or LOST in end["closed"][1]]


@pytest.mark.parametrize("where", [">&-", "> /dev/full", ">&- 2>&-", "> /dev/full 2> /dev/full", "<&- >&- 2>&-"])
def test_dispatch_sends_its_job_once_and_exits_with_0(where: str, project: Projects, redis: Client) -> None:
    shop = project(JOBS)
    command = f"exec {' '.join(QD)} dispatch mail.welcome to=a@b.c {where}"
    done = subprocess.run(["sh", "-c", command], cwd=shop.root, env=shop.env(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (f"{LOST}\n" if where == "> /dev/full" else "")
    assert redis.call("LLEN", "queues:default") == 1


def test_a_job_that_prints_to_a_full_stdout_fails(project: Projects, redis: Client) -> None:
    """Only the output of the command itself is dropped: print() in a job raises."""
    shop = project(JOBS)
    assert shop.qd("dispatch", "mail.welcome", "to=a@b.c").returncode == 0
    command = f"exec {' '.join(QD)} work -w 1 --stop-when-empty > /dev/full"
    done = subprocess.run(["sh", "-c", command], cwd=shop.root, env=shop.env(), capture_output=True, text=True)
    assert done.returncode == 0
    assert "job.failed" in done.stderr
    assert redis.call("HLEN", "queues:default:failed") == 1


def test_output_is_flushed_even_without_a_usable_stdout() -> None:
    """`manage.py qd ... >&-`: Python started without stdout, or with one that cannot be written to."""
    full = open("/dev/full", "w")  # noqa: SIM115  # its close() would fail too
    full.write("x")
    output.flush((None, full))
    with contextlib.suppress(OSError):
        full.close()


# -- a deleted folder

DELETED = "qd: the current folder has been deleted; cd into one that exists\n"


@pytest.mark.parametrize("words", ["status", "work", "config show", "doctor", "init", "dispatch mail.welcome"])
def test_a_deleted_current_folder_prints_one_line_and_exits_with_78(
    words: str, project: Projects, tmp_path: Path
) -> None:
    shop, folder = project(), tmp_path / "release-7"
    folder.mkdir()
    env = shop.env(QD_REDIS_URL=shop.url)
    gone = ["sh", "-c", f"rmdir {folder} && exec {' '.join(QD)} {words}"]
    done = subprocess.run(gone, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (78, "", DELETED)


def test_live_works_in_a_deleted_folder(project: Projects, tmp_path: Path) -> None:
    """A release folder may be deleted while the container's probe still runs in it."""
    shop, folder = project(), tmp_path / "release-7"
    folder.mkdir()
    gone = ["sh", "-c", f"rmdir {folder} && exec {' '.join(QD)} health --live"]
    done = subprocess.run(gone, cwd=folder, env=shop.env(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no master runs here" in done.stdout
