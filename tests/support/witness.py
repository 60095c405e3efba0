"""Jobs that record what they do in a file outside Redis, and reading that file.

Jobs that call `held()` last until the test creates the file `go`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable

from tests.support.project import Project
from tests.support.waiting import eventually

JOBS = """
def note(*words):
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

def held():
    end = time.monotonic() + 60
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.01)

@app.job("quick")
def quick(n: int = 0) -> None:
    note("quick", n, os.getpid())

@app.job("slow")
def slow(seconds: float, n: int = 0) -> None:
    note("start", n, os.getpid())
    time.sleep(seconds)
    note("end", n, os.getpid())

@app.job("boom", tries=2)
def boom() -> None:
    note("boom", current_job().attempt)
    raise ValueError("this job never works")
"""

# To append to JOBS: a job that lasts until the test calls go(), however long that takes.
LASTS = """
@app.job("lasts")
def lasts(n: int = 0) -> None:
    note("start", n, os.getpid())
    held()
    note("end", n, os.getpid())
"""


class Witness:
    def __init__(self, project: Project) -> None:
        self._file, self._go = project.root / "witness", project.root / "go"
        project.allowed |= {"witness", "go"}

    @property
    def lines(self) -> list[str]:
        """The complete lines; one that is being written is left out."""
        return self._file.read_text().split("\n")[:-1] if self._file.exists() else []

    def starting(self, word: str) -> list[str]:
        return [line for line in self.lines if line.startswith(word)]

    def go(self) -> None:
        """Let jobs in held() end."""
        self._go.touch()

    def wait(self, word: str, count: int = 1, seconds: float = 20.0) -> list[str]:
        """Wait for at least `count` lines that start with `word`."""
        enough: Callable[[], bool] = lambda: len(self.starting(word)) >= count  # noqa: E731
        eventually(enough, seconds, what=f"{count} x {word!r} in the witness file")
        return self.starting(word)


NOTE = """
def note(*words):
    fd = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

@app.job("single", unique="it")
def single(name: str) -> None:
    note(name)

@app.job("stuck", tries=2, timeout=1, backoff=0)
def stuck(name: str) -> None:
    note(name, current_job().attempt)
    time.sleep(60)
"""


class JobsOnlyProject:
    connection: str  # its name in qd.toml

    def __init__(self, project: Project) -> None:
        self.project = project
        project.allowed |= {"notes", *(f"control.sqlite{end}" for end in ("", "-wal", "-shm"))}

    def notes(self) -> list[str]:
        path = self.project.root / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def python(self, code: str) -> None:
        self.project.python(f"from jobs import *\n{textwrap.dedent(code)}\napp.connections.close_all()")

    def empty(self) -> bool:
        status = json.loads(self.project.quick("status", "--json").stdout)
        rows = [row for row in status.get("queues", []) if row["connection"] == self.connection]
        return all(row["ready"] + row["delayed"] + row["reserved"] == 0 for row in rows)
