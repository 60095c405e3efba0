"""The fixtures `qd_app`, `qd_fake`, `qd_inline` and `qd_worker`; pytest finds them through an entry point.

Loaded in every run of pytest where qd is installed, so qd itself is imported only when a fixture is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.pytest_plugin.worker import Server, Worker
    from qd.testing import Fake


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("qd_app", "The qd.Qd of the fixtures, as MODULE:ATTRIBUTE (default: `app` of qd.toml)", default="")


def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Hide qd's own frames in the traceback of a failed test, so that the last line is the user's. `--full-trace` shows
    them."""
    if call.excinfo is not None:
        for name, module in sys.modules.copy().items():
            if name.startswith("qd."):
                vars(module).setdefault("__tracebackhide__", _raised_for_the_user)


def _raised_for_the_user(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether qd reports a mistake, or a job raised the error. Any other error is qd's own, and needs all its frames."""
    from qd.errors import QdError

    module = str(error.traceback[-1].frame.f_globals.get("__name__"))
    return isinstance(error.value, QdError) or not module.startswith("qd.") or module == "qd.pytest_plugin.worker"


@pytest.fixture
def qd_app(pytestconfig: pytest.Config) -> Qd:
    """The app of the other fixtures: `qd_app` of pytest's configuration, or `app` of qd.toml. Override the fixture in
    conftest.py if you create the app in another way."""
    from qd.pytest_plugin.worker import find_app

    return find_app(str(pytestconfig.getini("qd_app")), pytestconfig.rootpath)


@pytest.fixture
def qd_fake(qd_app: Qd) -> Iterator[Fake]:
    """app.fake() for the duration of the test."""
    with qd_app.fake() as fake:
        yield fake


@pytest.fixture
def qd_inline(qd_app: Qd) -> Iterator[Fake]:
    """app.inline() for the duration of the test."""
    with qd_app.inline() as ran:
        yield ran


@pytest.fixture(scope="session")
def qd_server() -> Iterator[Server]:
    """A scratch Valkey or Redis, one per pytest process. It starts with the first test that uses a worker."""
    from qd.pytest_plugin.worker import Server

    server = Server()
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def qd_worker(qd_app: Qd, qd_server: Server, pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Worker]:
    """A real worker on a scratch server. The app uses that server for the duration of the test."""
    from qd.pytest_plugin.worker import worked

    with worked(qd_app, qd_server, pytestconfig.rootpath, tmp_path) as worker:
        yield worker
