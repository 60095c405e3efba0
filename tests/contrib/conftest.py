"""Projects of other frameworks in a temporary folder, and their own commands run in it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import QD, Procs
from tests.support.project import Project
from tests.support.servers.redis import Server

PYTHON = QD[0]
NOTE = '''
import os

def note(*words):
    """Write a line down outside Redis."""
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)
'''


class Framed(Project):
    """A project without qd.toml and jobs.py: its framework says what they would."""

    def write(self, **files: str) -> None:
        """Files by name: `__` is a slash, and what is not another's name ends in .py."""
        for name, text in files.items():
            path = self.root / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
            self.allowed.add(path.relative_to(self.root).parts[0])

    def start(self, *arguments: str, **env: str) -> Procs:
        """`python ARGUMENTS...`, started; as `work`."""
        procs = Procs([PYTHON, *arguments], cwd=self.root, env=self.env(**env))
        self.started.append(procs)
        return procs


@pytest.fixture
def framed(server: Server, tmp_path: Path) -> Iterator[Callable[..., Framed]]:
    """framed(name=text): a project of these files and nothing else, on the test's server."""
    made: list[Framed] = []

    def make(**files: str) -> Framed:
        root = tmp_path / "framed"
        root.mkdir()
        made.append(found := Framed(root, server.url))
        for name in ("qd.toml", "jobs.py"):
            (root / name).unlink()
        found.write(noted=NOTE, **files)
        return found

    yield make
    for one in made:
        one.close()
