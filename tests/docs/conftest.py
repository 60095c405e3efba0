"""Fixtures of the features that the pages describe: the commands, and projects of other frameworks."""

from tests.cli.conftest import configured, folder, qd, still  # noqa: F401  fixtures
from tests.contrib.conftest import framed  # noqa: F401  a fixture
