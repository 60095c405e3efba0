"""What `qd init` prints for the project in the current folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from qd.cli.main import command
from tests.cli.conftest import folder  # noqa: F401  a fixture

Printed = Callable[[str], str]


@pytest.fixture
def printed(folder: Path) -> Printed:  # noqa: F811
    """printed("docker") -> the file."""

    def run(target: str) -> str:
        done = CliRunner().invoke(command, ["init", target], prog_name="qd")
        assert done.exit_code == 0, done.stderr
        return done.stdout

    return run
