"""A project laid out as the shipped supervisord and systemd files expect it, below a folder that stands for /srv/shop:

    releases/1/{qd.toml, jobs.py, .venv/bin/qd}     current -> releases/1

Its jobs, and the functions of its schedule (SCHEDULE), note what happens to them in the file `ran`, one line each, and wait
for files that the test makes.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support import warm
from tests.support.procs import QD
from tests.support.project import SOURCE
from tests.support.resp import Client

ROOT = Path(__file__).resolve().parents[2]

JOBS = """
import os, threading, time
from pathlib import Path
from qd import Qd

app = Qd()
if os.environ.get("LEAVE_A_THREAD"):
    threading.Thread(target=time.sleep, args=(1000,), name="left-behind", daemon=True).start()
HERE = Path(os.environ.get("STATE_DIRECTORY") or os.environ["HOME"])
RELEASE = Path(__file__).resolve().parent.name
kept = []

def say(*words):
    with open(HERE / "ran", "a") as file:
        file.write(" ".join(words) + "\\n")

@app.job("note")
def note(text: str) -> None:
    say("note", text, RELEASE)

@app.job("where")
def where() -> None:
    say("where", os.getcwd())

@app.job("wait")
def wait(text: str) -> None:
    say("begin", text, RELEASE)
    while not (HERE / f"go-{text}").exists():
        time.sleep(0.01)
    say("end", text, RELEASE)

def tick():
    say("tick", RELEASE)

def hold():
    wait("hold")

@app.job("grow")
def grow(megabytes: int) -> None:
    kept.append(bytearray(os.urandom(1)) * (megabytes << 20))
    say("grown", RELEASE)
"""


# For `config`: `tick` comes all the time, `hold` runs until there is a file go-hold. Both only where QD_ENV is schedule.
SCHEDULE = """
[schedule.entries.tick]
call = "jobs:tick"
every = 0.2
environments = ["schedule"]

[schedule.entries.hold]
call = "jobs:hold"
every = 1
without_overlapping = true
environments = ["schedule"]
"""


class Deployed:
    """`python` is the interpreter of `.venv/bin/qd`, as words for env(1); `config` is added to qd.toml."""

    def __init__(self, root: Path, url: str, python: str, config: str = "") -> None:
        self.root, self.url, self.python, self.config = root, url, python, config
        root.mkdir(mode=0o755, parents=True)
        self.release("1")

    def release(self, name: str) -> None:
        """Make release `name` and point `current` at it."""
        folder = self.root / "releases" / name
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / "jobs.py").write_text(JOBS)
        self._configure(folder / "qd.toml", self.url)
        qd = folder / ".venv" / "bin" / "qd"
        # As pip writes it: no shell, which would set PWD right.
        qd.write_text(f"#!/usr/bin/env -S {self.python}\nfrom qd.cli.main import main\n\nmain()\n")
        qd.chmod(qd.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        self.back_to(name)

    def back_to(self, name: str) -> None:
        """Point `current` at a release, in one step, as deploy tools do."""
        link = self.root / "current.new"
        link.symlink_to(f"releases/{name}")
        link.replace(self.root / "current")

    def point(self, url: str) -> None:
        """Let the present release use another server."""
        self._configure(self.root / "current" / "qd.toml", url)

    def break_config(self) -> None:
        (self.root / "current" / "qd.toml").write_text('[qd]\napp = "jobs:app"\nconections = 1\n')

    def qd(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`qd ...` in the present release, from outside."""
        current = self.root / "current"
        env = {key: value for key, value in os.environ.items() if not key.startswith("QD_")}
        env |= {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*QD, *arguments, "--config", str(current / "qd.toml")]
        return warm.run(command, cwd=current, env=env, capture_output=True, text=True, timeout=60, check=False)

    def log(self) -> str:
        """What qd has written, as supervisord keeps it."""
        path = self.root / "qd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _configure(self, file: Path, url: str) -> None:
        file.write_text(f'[qd]\napp = "jobs:app"\n\n[connections.redis]\nurl = "{url}"\n\n{self.config}')


def push(redis: Client, job: str, data: dict[str, object], queue: str = "default") -> None:
    """As Laravel pushes a string job."""
    payload: dict[str, object] = {
        "uuid": f"{job}-{data}",
        "displayName": job,
        "job": job,
        "maxTries": None,
        "maxExceptions": None,
    }
    payload |= {"failOnTimeout": False, "backoff": None, "timeout": None, "data": data, "attempts": 0}
    redis.call("RPUSH", f"queues:{queue}", json.dumps(payload))
    redis.call("RPUSH", f"queues:{queue}:notify", "1")


def ran(folder: Path) -> list[str]:
    """What the jobs noted so far."""
    try:
        return (folder / "ran").read_text().splitlines()
    except FileNotFoundError:
        return []


def paused(redis: Client, pool: str) -> bool:
    """Has the keeper of `pool` reported that its master is paused?"""
    masters = [json.loads(text) for text in redis.hash("qd:masters").values()]
    return any(m["state"] == "paused" for m in masters if (m["pool"] or "") == pool)


def shipped(name: str, replace: Sequence[tuple[str, str]] = ()) -> str:
    """The text of a file in supervisor/, each given pair replaced; a pair that is not there is an error."""
    text = (ROOT / "supervisor" / name).read_text()
    for old, new in replace:
        assert old in text, f"supervisor/{name} has no {old!r}"
        text = text.replace(old, new)
    return text
