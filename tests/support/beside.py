"""A project on a connection that keeps jobs and nothing else: what its jobs note down, and whether all of them are done."""

from __future__ import annotations

import json
import textwrap

from tests.support.project import Project

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


class Beside:
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
        said = json.loads(self.project.quick("status", "--json").stdout)
        rows = [row for row in said.get("queues", []) if row["connection"] == self.connection]
        return all(row["ready"] + row["delayed"] + row["reserved"] == 0 for row in rows)
