"""Projects of other frameworks in a temporary folder, run with the frameworks' commands."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qd.contrib.django.project import HERE
from tests.support.processes import QD, Procs
from tests.support.project import Project
from tests.support.servers.redis import Server

PYTHON = QD[0]
# With these, `qd` is what `manage.py qd` becomes (qd/contrib/command.py), and is forked from the warm process.
BECOME: dict[str, Any] = {
    "DJANGO_SETTINGS_MODULE": "shop.settings",
    "QD_APP": HERE,
    "_QD_COMMAND": "python manage.py qd",
}
NOTE = '''
import os

def note(*words):
    """Write a line outside Redis."""
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)
'''


class FrameworkProject(Project):
    """A project without qd.toml and jobs.py: its framework has the configuration."""

    def write(self, **files: str) -> None:
        """Write files by name: `__` is a slash, and .py is appended."""
        for name, text in files.items():
            path = self.root / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
            self.allowed.add(path.relative_to(self.root).parts[0])

    def start(self, *arguments: str, **env: str) -> Procs:
        """Start `python ARGUMENTS...`; like `work`."""
        procs = Procs([PYTHON, *arguments], cwd=self.root, env=self.env(**env))
        self.started.append(procs)
        return procs


@pytest.fixture
def framed(server: Server, tmp_path: Path) -> Iterator[Callable[..., FrameworkProject]]:
    """framed(name=text): a project of these files and nothing else, on the test's server."""
    made: list[FrameworkProject] = []

    def make(**files: str) -> FrameworkProject:
        root = tmp_path / "framed"
        root.mkdir()
        made.append(found := FrameworkProject(root, server.url))
        for name in ("qd.toml", "jobs.py"):
            (root / name).unlink()
        found.write(noted=NOTE, **files)
        return found

    yield make
    for one in made:
        one.close()
