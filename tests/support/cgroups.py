"""A control group of the kernel's, made for one test: limits that are real, v1 or v2."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.clock import eventually
from tests.support.peers import missing

ROOT = Path("/sys/fs/cgroup")


class Group:
    """limits: file of v1 -> file of v2, value."""

    def __init__(self, folder: Path, v2: bool) -> None:
        self.folder, self.v2 = folder, v2

    def limit(self, v1: str, v2: str, value: int | str) -> None:
        (self.folder / (v2 if self.v2 else v1)).write_text(str(value))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.read("cgroup.procs").split()]

    @property
    def words(self) -> list[str]:
        """What stands before a command that is to run in it."""
        return ["sh", "-c", f'echo $$ >{self.folder}/cgroup.procs && exec "$@"', "sh"]

    @contextmanager
    def joined(self) -> Iterator[None]:
        """This process is in the group meanwhile, and what it starts stays there."""
        home = self._home()
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (home / "cgroup.procs").write_text(str(os.getpid()))

    def gone(self) -> bool:
        """Taken away, with what a test that failed in the middle has left; each process may end by itself meanwhile."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):  # busy: one is still about to end
            self.folder.rmdir()
        return not self.folder.exists()

    def _home(self) -> Path:
        """The group this process is in now."""
        controller = "" if self.v2 else self.folder.relative_to(ROOT).parts[0]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == controller:
                return ROOT / controller / path.lstrip("/")
        raise AssertionError(f"in no group of {controller!r}")


@contextmanager
def group(controller: str, name: str) -> Iterator[Group]:
    """A fresh group of `memory` or `pids`. Leaves the test where none can be made: not root, or a container."""
    v1 = (ROOT / controller / "cgroup.procs").exists()
    folder = ROOT / controller / name if v1 else ROOT / name
    try:
        if not v1:
            (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir()
    except OSError as error:
        missing(f"the right to make a group of {controller}: {error}")
    found = Group(folder, not v1)
    try:
        yield found
    finally:
        eventually(found.gone, 20, what="an empty group")
