"""A user's project in a temporary folder: qd.toml, a module jobs.py, and the real `qd` run in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner, Result

from qd.cli.main import command
from qd.drivers import embedded
from tests.support import warm
from tests.support.processes import QD, Procs, waiting

SOURCE = Path(__file__).resolve().parents[2] / "daemon"
PRELUDE = "import os, sys, time\nfrom pathlib import Path\nfrom qd import Qd, current_job\n\napp = Qd()\n\n"
OURS = ("QD_", "REDIS_URL", "NOTIFY_SOCKET", "WATCHDOG", "INVOCATION_ID", "SUPERVISOR", "XDG_RUNTIME_DIR", "COLUMNS")
ALLOWED = {"qd.toml", "jobs.py"}
# A master that gives jobs over their timeout ten seconds to end by themselves instead of 0.4, for tests of how they do.
GENTLE = (
    sys.executable,
    "-c",
    "from qd.master import watchdog as late; late.GRACE = 10.0\nfrom qd.cli.main import main; main()",
)
START = 60.0  # seconds that a start may take on a busy machine


class Project:
    """`jobs` is the text of jobs.py (without an `app =` the usual imports and `app = Qd()` come first), `config` is
    added to qd.toml. `run` is the runtime folder the project's processes see, empty again after a clean end. `fresh`: its
    programs are executed, not forked from the warm process (support/warm.py). `mode`: environment variables for them."""

    def __init__(
        self, root: Path, url: str, jobs: str = "", config: str = "", mode: Mapping[str, str] | None = None
    ) -> None:
        self.root, self.url, self.mode = root, url, mode or {}
        self.run = Path(tempfile.mkdtemp(prefix="qd-run-"))
        self.fresh = False
        self.started: list[Procs] = []
        self.program: Sequence[str] = QD  # of `qd work`
        self.allowed = set(ALLOWED)
        self.jobs(jobs)
        self.config(config)

    def jobs(self, source: str) -> None:
        text = textwrap.dedent(source)
        (self.root / "jobs.py").write_text(text if "app = " in text else PRELUDE + text)

    def config(self, more: str = "") -> None:
        text = f'[qd]\napp = "jobs:app"\n\n[connections.redis]\nurl = "{self.url}"\n\n{textwrap.dedent(more)}'
        (self.root / "qd.toml").write_text(text)

    def env(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
        path = os.pathsep.join(filter(None, [str(SOURCE), kept.get("PYTHONPATH")]))
        ours = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "XDG_RUNTIME_DIR": str(self.run), "NO_COLOR": "1"}
        return {**kept, **ours, **self.mode, **more}

    def work(self, *arguments: str, within: Sequence[str] = (), **env: str) -> Procs:
        """Start `qd work ...`. within: prefix of the command."""
        return self.begin("work", *arguments, within=within, **env)

    def begin(self, *arguments: str, within: Sequence[str] = (), **env: str) -> Procs:
        """Start `qd ...`. The test must end it; processes left running fail the test."""
        procs = Procs([*within, *self.program, *arguments], cwd=self.root, env=self.env(**env), fresh=self.fresh)
        self.started.append(procs)
        return procs

    def work_off(self, *arguments: str, **env: str) -> Procs:
        """Run `qd work` with one worker until its queues are empty. It must end cleanly."""
        work = self.work("-w", "1", "--stop-when-empty", *arguments, **env)
        work.ends_clean(seconds=60)
        return work

    def qd(self, *arguments: str, seconds: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `qd ...` to its end."""
        return warm.run(
            [*QD, *arguments],
            fresh=self.fresh,
            cwd=self.root,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def quick(self, *arguments: str) -> Result:
        """Run `qd ...` in this process, which is faster. For commands that do not import the app."""
        ours = dict.fromkeys((name for name in os.environ if name.startswith(OURS)), None)
        words = [*arguments, "--config", str(self.root / "qd.toml")]
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # files left in the folder fail the test
        paths = [*sys.path]
        self._forget()
        try:
            return CliRunner().invoke(command, words, prog_name="qd", env=ours)
        finally:
            sys.dont_write_bytecode, sys.path[:] = writes, paths
            self._forget()

    def _forget(self) -> None:
        """Remove the modules of this project from sys.modules, and modules of other tests with the same names."""
        own = {path.stem for path in self.root.iterdir() if path.suffix == ".py" or path.is_dir()}
        for name, module in [*sys.modules.items()]:
            place = str(getattr(module, "__file__", None) or "")
            if place.startswith(f"{self.root}{os.sep}") or (name in own and place.startswith(tempfile.gettempdir())):
                del sys.modules[name]

    def python(self, code: str, seconds: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a producer: `code` in a new process, in the project's folder. It must succeed."""
        done = warm.run(
            [QD[0], "-c", textwrap.dedent(code)],
            fresh=self.fresh,
            cwd=self.root,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def close(self) -> None:
        """Kill remaining processes, remove the runtime folder, and fail if unexpected processes or files were left."""
        running = [title for procs in self.started for title in procs.sweep()]
        if self.url.startswith("embedded:"):
            embedded.stop(self.root)
        killed = [p.pid for p in self.started if (p.process.returncode or 0) < 0]  # they could not remove their files
        files = [str(p.relative_to(self.run)) for p in self.run.rglob("*") if not p.is_dir()]
        theirs = tuple(f".{pid}.{kind}" for pid in killed for kind in ("live", "new"))  # new: killed while writing
        left = sorted(name for name in files if not name.endswith(theirs))
        strange = sorted(p.name for p in self.root.iterdir() if p.name not in self.allowed)
        shutil.rmtree(self.run, ignore_errors=True)
        assert not running, f"still running at the end of the test: {running}"
        assert not left, f"left in the runtime folder: {left}"
        assert not strange, f"left in the project's folder: {strange} (project.allowed names what may stay)"


MakeProject = Callable[..., Project]  # the fixture `project`
Start = Callable[..., Procs]  # a fixture: `ready` of one project


def ready(project: Project, *arguments: str, workers: int = 1, **env: str) -> Procs:
    """Start `qd work` and wait until its workers are ready."""
    work = project.work("-w", str(workers), *arguments, **env)
    work.wait_line("master.ready", START)
    return work


def idle(project: Project, *arguments: str, workers: int = 1) -> Procs:
    """Start `qd work` and wait until its workers are idle."""
    work = project.work("-w", str(workers), *arguments)
    waiting(work, workers, START)
    return work


class DoctorLine(NamedTuple):
    sign: str
    what: str
    value: str
    fix: str


class DoctorReport(NamedTuple):
    code: int
    lines: list[DoctorLine]

    def line(self, what: str) -> DoctorLine:
        (found,) = [line for line in self.lines if line.what == what]
        return found

    def bad(self) -> list[tuple[str, str]]:
        """(sign, what) of each problem, except those of every test: running as root, and a server without persistence."""
        ours = ("root", "redis.persistence", "redis.latency")
        return [(line.sign, line.what) for line in self.lines if line.sign != "ok" and line.what not in ours]


def doctor(shop: Project, *words: str, **env: str) -> DoctorReport:
    done = shop.qd("doctor", "--json", *words, seconds=60.0, **env)
    found = json.loads(done.stdout)
    assert (found["exit"], found["ok"]) == (done.returncode, done.returncode == 0), done.stderr
    lines = [DoctorLine(**check) for check in found["checks"]]
    assert all(line.fix for line in lines if line.sign != "ok"), "a line without its fix"
    return DoctorReport(done.returncode, lines)


def with_setting(text: str, key: str, value: str | None) -> str:
    """`text` with the line of `key` replaced by `key=value`, or removed."""
    return re.sub(rf"^{key}=.*$", "" if value is None else f"{key}={value}", text, flags=re.MULTILINE)
