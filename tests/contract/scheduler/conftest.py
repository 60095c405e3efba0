"""Schedulers in this process, on the test's server."""

from tests.process.conftest import app, open_host, report  # noqa: F401  fixtures
