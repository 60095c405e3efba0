"""Deployments with the shipped files: a project laid out for them, the real supervisord, and a real systemd.

    releases/1/{qd.toml, jobs.py, .venv/bin/qd}     current -> releases/1

The project is below a folder that represents /srv/shop. Its jobs, and the functions of its schedule (SCHEDULE), write what
happens to them into the file `ran`, one line each, and wait for files that the test makes. supervisord runs in the
foreground with a socket in a temporary folder; systemd runs as PID 1 in its own namespaces (boot_systemd.sh).
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support import warm
from tests.support.processes import QD, Procs
from tests.support.programs import missing, program
from tests.support.project import SOURCE
from tests.support.redis import Client
from tests.support.servers.redis import die_with_parent
from tests.support.waiting import eventually

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


# For `config`: `tick` runs all the time, `hold` runs until the file go-hold exists. Both only if QD_ENV is schedule.
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
        """Create release `name` and point `current` at it."""
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
        """Make the current release use another server."""
        self._configure(self.root / "current" / "qd.toml", url)

    def break_config(self) -> None:
        (self.root / "current" / "qd.toml").write_text('[qd]\napp = "jobs:app"\nconections = 1\n')

    def qd(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`qd ...` in the current release, run from outside."""
        current = self.root / "current"
        env = {key: value for key, value in os.environ.items() if not key.startswith("QD_")}
        env |= {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*QD, *arguments, "--config", str(current / "qd.toml")]
        return warm.run(command, cwd=current, env=env, capture_output=True, text=True, timeout=60, check=False)

    def log(self) -> str:
        """The log of qd, as supervisord stores it."""
        path = self.root / "qd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _configure(self, file: Path, url: str) -> None:
        file.write_text(f'[qd]\napp = "jobs:app"\n\n[connections.redis]\nurl = "{url}"\n\n{self.config}')


def push(redis: Client, job: str, data: dict[str, object], queue: str = "default") -> None:
    """Push a string job as Laravel does."""
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
    """The lines that the jobs wrote so far."""
    try:
        return (folder / "ran").read_text().splitlines()
    except FileNotFoundError:
        return []


def paused(redis: Client, pool: str) -> bool:
    """Whether the keeper of `pool` has reported its master as paused."""
    masters = [json.loads(text) for text in redis.hash("qd:masters").values()]
    return any(m["state"] == "paused" for m in masters if (m["pool"] or "") == pool)


def shipped(name: str, replace: Sequence[tuple[str, str]] = ()) -> str:
    """The text of a file in supervisor/, with each given pair replaced; a missing pair is an error."""
    text = (ROOT / "supervisor" / name).read_text()
    for old, new in replace:
        assert old in text, f"supervisor/{name} has no {old!r}"
        text = text.replace(old, new)
    return text


SUPERVISORD_CONF = """
[supervisord]
nodaemon=true
user={user}
logfile={folder}/supervisord.log
loglevel=info
pidfile={folder}/supervisord.pid
[unix_http_server]
file={folder}/s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/s

"""


class Supervisord:
    """`program` is the text of a program file; `qd` is its name in supervisord."""

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        self.bin = Path(sys.executable).parent
        if not (self.bin / "supervisord").exists():
            missing("supervisord (the package `supervisor`)")
        self.folder = Path(tempfile.mkdtemp(prefix="qd-sv-"))  # short: a socket path has 107 bytes
        self.conf = self.folder / "supervisord.conf"
        self.conf.write_text(SUPERVISORD_CONF.format(folder=self.folder, user=getpass.getuser()) + program)
        self.env = dict(env)
        self.procs: Procs | None = None

    def __enter__(self) -> Supervisord:
        command = [str(self.bin / "supervisord"), "-n", "-c", str(self.conf)]
        self.procs = Procs(command, cwd=self.folder, env=self.env)
        eventually(lambda: self.ctl("pid").stdout.strip() == str(self.pid), 20, what="a supervisord that answers")
        return self

    def __exit__(self, *_: object) -> None:
        """Ask qd to stop, then kill supervisord, which checks for dead children only once a second."""
        assert self.procs is not None
        procs = self.procs
        if procs.process.poll() is None:
            procs.kill()
            for pid in self.starts()[-1:]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        with suppress(AssertionError):
            eventually(lambda: not procs.session(), 20)
        left = procs.sweep()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"supervisord left {left}"

    @property
    def pid(self) -> int:
        assert self.procs is not None
        return self.procs.pid

    @property
    def log(self) -> str:
        """supervisord's own log: spawned, entered RUNNING, exited, gave up, ..."""
        path = self.folder / "supervisord.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "supervisorctl"), "-c", str(self.conf), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a supervisorctl without waiting for it."""
        return subprocess.Popen([str(self.bin / "supervisorctl"), "-c", str(self.conf), *arguments], env=self.env)

    def starts(self) -> list[int]:
        """The pids of the program so far, as supervisord logged them."""
        return [int(pid) for pid in re.findall(r"spawned: 'qd' with pid (\d+)", self.log)]

    def started(self, count: int = 1, seconds: float = 20.0) -> psutil.Process:
        """Wait until supervisord reports the `count`-th process of the program as RUNNING, and return it."""
        running = "success: qd entered RUNNING"
        eventually(lambda: len(self.starts()) >= count, seconds, what=f"start {count} of qd")
        eventually(lambda: self.log.count(running) >= count, seconds, what=f"{count} times {running!r}\n{self.log}")
        return psutil.Process(self.starts()[count - 1])

    def troubles(self) -> list[str]:
        """Lines of supervisord's log that would alert an operator."""
        return [line for line in self.log.splitlines() if re.search(r"FATAL|BACKOFF|gave up|ERROR|SIGKILL", line)]


SYSTEMD = Path("/usr/lib/systemd/systemd")
SHOP = "shop:x:62001:62001::/srv/shop:/usr/sbin/nologin"
HERE = Path(__file__).resolve().parent


def require_systemd() -> None:
    """Skip the test if systemd cannot be booted here: not root, no unshare, no systemd."""
    for name in ("unshare", "nsenter", "setpriv", "systemctl", "systemd-analyze"):
        program(name)
    if not SYSTEMD.exists():
        missing(str(SYSTEMD))
    allowed = os.geteuid() == 0 and subprocess.run(
        ["unshare", "--pid", "--fork", "--mount", "--cgroup", "true"], capture_output=True, check=False
    )
    if not allowed or allowed.returncode != 0:
        missing("root with the right to unshare namespaces")


def python_inside() -> tuple[str, list[str]]:
    """How to start this Python inside, as arguments for env(1), and the folders to mount for it: the packages of this
    environment and qd itself.

    A Python below /usr exists inside already; another one is mounted at /opt/python (it finds its library by its own path).
    """
    folders = [f"{SOURCE}:/opt/qd:ro", f"{sysconfig.get_path('purelib')}:/opt/packages:ro"]
    library = ""
    base, executable = Path(sys.base_prefix), Path(os.path.realpath(sys.executable))
    if not base.is_relative_to("/usr"):
        folders.append(f"{base}:/opt/python:ro")
        executable = Path("/opt/python") / executable.relative_to(base.resolve())
        library = "LD_LIBRARY_PATH=/opt/python/lib "  # a shared libpython is linked with its old path
    return f"{library}PYTHONPATH=/opt/qd:/opt/packages PYTHONDONTWRITEBYTECODE=1 {executable}", folders


class SystemdRig:
    """A booted systemd with the units of the folder `units`; `mounts` are SOURCE:TARGET[:ro]."""

    def __init__(self, folder: Path, units: Path, mounts: Sequence[str]) -> None:
        folder.mkdir()
        self.folder, self.units, self.mounts = folder, units, mounts
        self.pid = 0  # of systemd, in the namespace of the tests
        self._top: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SystemdRig:
        command = ["sh", str(HERE / "boot_systemd.sh"), str(self.folder), str(self.units), SHOP, *self.mounts]
        with open(self.folder / "out", "wb") as out:
            self._top = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent, process_group=0
            )
        try:
            self.pid = eventually(self._find, 20, what="a PID 1")
            eventually(self._booted, 30, every=0.05, what="a booted systemd")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._top is not None
        if self.pid:
            os.kill(self.pid, 9)  # all processes of its namespace end with it
        else:
            self._top.kill()
        self._top.wait(20)
        print((self.folder / "out").read_text(errors="replace"), file=sys.stderr)

    def _find(self) -> int:
        """The grandchild that is PID 1 in a namespace below this one and runs systemd."""
        assert self._top is not None
        if self._top.poll() is not None:
            raise RuntimeError(f"boot_systemd.sh ended: {(self.folder / 'out').read_text(errors='replace')}")
        waiting = [self._top.pid]
        while waiting:
            pid = waiting.pop()
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                continue
            numbers = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
            if status.startswith("Name:\tsystemd\n") and len(numbers) > 1 and numbers[-1] == "1":
                return pid
        return 0

    def _booted(self) -> bool:
        return self.run("systemctl", "is-system-running").stdout.strip() == "running"

    def run(self, *command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program inside, as root."""
        inside = ["nsenter", "-t", str(self.pid), "-a", *command]
        return subprocess.run(
            inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )

    def systemctl(self, *arguments: str) -> str:
        """Its output. Fails with its errors and the last lines of the journal if it does not exit with 0."""
        done = self.run("systemctl", "--no-pager", *arguments)
        assert done.returncode == 0, f"systemctl {' '.join(arguments)}: {done.stderr}\n{self.journal()}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """One property of a unit: MainPID, NRestarts, Result, StatusText, ..."""
        return self.systemctl("show", "--value", "-p", name, unit).strip()

    def state(self, unit: str) -> str:
        """active, inactive, failed, activating, deactivating or reloading."""
        return self.show(unit, "ActiveState")

    def pids(self, unit: str) -> list[int]:
        """The pids of a unit, as seen inside."""
        group = self.show(unit, "ControlGroup")
        for top in ("systemd", "."):
            listed = self.path(f"/sys/fs/cgroup/{top}{group}/cgroup.procs")
            if listed.exists():
                return [int(pid) for pid in self.run("cat", f"/sys/fs/cgroup/{top}{group}/cgroup.procs").stdout.split()]
        return []

    def path(self, inside: str) -> Path:
        """The path to a file inside, to read and write it from the tests."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def journal(self, unit: str = "") -> str:
        """All journal lines of a unit (thousands for a busy one); without a unit, the last lines of the journal."""
        which = ["-u", unit] if unit else ["-n", "60"]
        return self.run("journalctl", "--no-pager", "-o", "short-precise", *which).stdout
