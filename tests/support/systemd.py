"""A real systemd as PID 1 in namespaces of its own (boot_systemd.sh), and how to speak to it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.support.clock import eventually
from tests.support.peers import missing, program
from tests.support.project import SOURCE
from tests.support.server import die_with_parent

SYSTEMD = Path("/usr/lib/systemd/systemd")
SHOP = "shop:x:62001:62001::/srv/shop:/usr/sbin/nologin"
HERE = Path(__file__).resolve().parent


def required() -> None:
    """Leave the test where no systemd can be booted: not root, no unshare, no systemd."""
    for name in ("unshare", "nsenter", "setpriv", "systemctl", "systemd-analyze"):
        program(name)
    if not SYSTEMD.exists():
        missing(str(SYSTEMD))
    allowed = os.geteuid() == 0 and subprocess.run(
        ["unshare", "--pid", "--fork", "--mount", "--cgroup", "true"], capture_output=True, check=False
    )
    if not allowed or allowed.returncode != 0:
        missing("root with the right to unshare namespaces")


def python() -> tuple[str, list[str]]:
    """This Python as it is found inside, as words for env(1), and the folders for that: with this environment's packages
    and qd itself.

    A Python below /usr is there already; another one appears in /opt/python (it finds its library by its own place).
    """
    folders = [f"{SOURCE}:/opt/qd:ro", f"{sysconfig.get_path('purelib')}:/opt/packages:ro"]
    library = ""
    base, executable = Path(sys.base_prefix), Path(os.path.realpath(sys.executable))
    if not base.is_relative_to("/usr"):
        folders.append(f"{base}:/opt/python:ro")
        executable = Path("/opt/python") / executable.relative_to(base.resolve())
        library = "LD_LIBRARY_PATH=/opt/python/lib "  # a shared libpython was linked with the name of its old place
    return f"{library}PYTHONPATH=/opt/qd:/opt/packages PYTHONDONTWRITEBYTECODE=1 {executable}", folders


class Rig:
    """Units of the folder `units` are installed; `mounts` are SOURCE:TARGET[:ro]."""

    def __init__(self, folder: Path, units: Path, mounts: Sequence[str]) -> None:
        folder.mkdir()
        self.folder, self.units, self.mounts = folder, units, mounts
        self.pid = 0  # of systemd, as this side sees it
        self._top: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Rig:
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
        """A program run inside, as root."""
        inside = ["nsenter", "-t", str(self.pid), "-a", *command]
        return subprocess.run(
            inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )

    def systemctl(self, *arguments: str) -> str:
        """Its output; fails with what it said and the journal's last lines if it does not exit 0."""
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
        """The processes of a unit, numbered as inside."""
        group = self.show(unit, "ControlGroup")
        for top in ("systemd", "."):
            listed = self.path(f"/sys/fs/cgroup/{top}{group}/cgroup.procs")
            if listed.exists():
                return [int(pid) for pid in self.run("cat", f"/sys/fs/cgroup/{top}{group}/cgroup.procs").stdout.split()]
        return []

    def path(self, inside: str) -> Path:
        """A file of the inside, for this side to read and write."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def journal(self, unit: str = "") -> str:
        """All that a unit has said and what was said of it, a busy one thousands of lines; without one, the last lines."""
        which = ["-u", unit] if unit else ["-n", "60"]
        return self.run("journalctl", "--no-pager", "-o", "short-precise", *which).stdout
