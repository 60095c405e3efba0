"""A project with the usual jobs, and what they write down. A file with jobs of its own has its own `shop`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qd import Qd
from tests.support.processes import Procs
from tests.support.project import SOURCE, MakeProject, Project
from tests.support.redis import Client
from tests.support.schedule import Drive, Host, Open, ScheduleProject
from tests.support.servers.redis import Server
from tests.support.witness import JOBS, Witness

PROGRAM = "import os, sys, time\nfrom qd import Qd\napp = Qd()\n"


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=JOBS)


@pytest.fixture
def witness(shop: Project) -> Witness:
    return Witness(shop)


@pytest.fixture
def drive(project: MakeProject) -> Drive:
    """drive(entries, config="") -> a project whose runs a small scheduler starts."""
    return lambda source, config="": ScheduleProject(project(), source, config)


@pytest.fixture
def app(server: Server) -> Iterator[Qd]:
    """An app of this process on the test's server."""
    made = Qd(server.url)
    yield made
    made.connections.close_all()


@pytest.fixture
def open_host(app: Qd, server: Server, clean_redis: Client) -> Iterator[Open]:
    """open_host(name=...): a scheduler of the app's entries on that host; ended at the end."""
    opened: list[Host] = []

    def make(name: str = "web1", **more: Any) -> Host:
        opened.append(Host(more.pop("app", app), server, name, **more))
        return opened[-1]

    yield make
    for host in opened:
        host.close()


@pytest.fixture
def report(app: Qd) -> Any:
    """A job of that app."""

    @app.job("report")
    def report(day: int) -> None: ...

    return report


@pytest.fixture
def program(server: Server, tmp_path: Path) -> Iterator[Callable[..., Procs]]:
    """program(code): started in a process of its own, with an `app`; ended with the test."""
    started: list[Procs] = []
    env = {"PYTHONPATH": str(SOURCE), "QD_REDIS_URL": server.url, "PATH": os.environ["PATH"]}

    def start(code: str) -> Procs:
        started.append(Procs([sys.executable, "-c", PROGRAM + code], cwd=tmp_path, env=env))
        return started[-1]

    yield start
    for procs in started:
        procs.sweep()
