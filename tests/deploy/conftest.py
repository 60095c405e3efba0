"""What `qd init` prints for the project in the current folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from qd.cli.main import command
from tests.cli.conftest import Run, folder  # noqa: F401  a fixture

Printed = Callable[[str], str]


@pytest.fixture
def qd(folder: Path) -> Run:  # noqa: F811
    return lambda *words: CliRunner().invoke(command, words, prog_name="qd")


@pytest.fixture
def printed(qd: Run) -> Printed:
    """printed("docker") -> the file."""

    def run(target: str) -> str:
        done = qd("init", target)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    return run
