"""Ticks as a scheduler takes them, on a real server: its turns are made by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qd import Qd
from qd.payload import Payload, read
from tests.support.resp import Client
from tests.support.scheduling import Host
from tests.support.server import Server

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:unique:*")
Open = Callable[..., Host]


@pytest.fixture
def app() -> Qd:
    return Qd()


@pytest.fixture
def open_host(app: Qd, server: Server) -> Iterator[Open]:
    """open_host(name=...): a scheduler of the app's entries on that host; ended at the end."""
    opened: list[Host] = []

    def make(name: str = "web1", **more: Any) -> Host:
        opened.append(Host(app, server, name, **more))
        return opened[-1]

    yield make
    for host in opened:
        host.close()


def waiting(redis: Client, queue: str = "default") -> list[Payload]:
    return [read(raw) for raw in redis.call("LRANGE", f"queues:{queue}", 0, -1)]


def test_a_job_is_sent_at_each_tick_and_a_function_is_run(
    app: Qd, redis: Client, open_host: Open, tmp_path: Path
) -> None:
    @app.job("report")
    def report(day: int) -> None: ...

    def touch() -> None:
        with (tmp_path / "ran").open("a") as file:
            file.write("x")

    app.schedule(report.bind(7), every=0.2)
    app.schedule(touch, every=0.2, name="touch")
    host = open_host()
    host.turns(lambda: len(host.said("schedule.sent")) >= 3 and len(host.said("schedule.done")) >= 2)
    assert [job.id for job in waiting(redis)] == [
        line.split("id=")[1].split()[0] for line in host.said("schedule.sent")
    ]
    assert (tmp_path / "ran").read_text().startswith("xx")
