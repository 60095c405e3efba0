"""What the keepers of a running `qd work` record for `qd events`, on Redis and in a database."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.keeper import wait_for_reports
from tests.support.project import Project, ready
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS

Projects = Callable[..., Project]
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:restart")]


def recorded(shop: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shop.qd("events", "--json").stdout.splitlines()]


def whats(shop: Project) -> list[str]:
    return [event["what"] for event in recorded(shop)]


@pytest.fixture(params=["redis", "sqlite"])
def shop(project: Projects, tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    if request.param == "redis":
        return project(jobs=JOBS)
    found = project(jobs=JOBS, url=f"sqlite:///{tmp_path / 'jobs.sqlite'}")
    assert found.quick("migrate").exit_code == 0
    return found


def test_start_new_code_and_stop_are_recorded_once_whichever_keeper_is_there(shop: Project) -> None:
    work = ready(shop, QD_ACTOR="deploy")
    eventually(lambda: whats(shop) == ["master started"], 60)
    (start,) = recorded(shop)
    assert start["actor"] == "deploy"
    assert (start["object"]["pool"], start["object"]["code"]) == ("default", str(shop.root.resolve()))
    keeper = work.child("qd: keeper")
    keeper.kill()
    eventually(lambda: [k for k in work.children("qd: keeper") if k.pid != keeper.pid], 20, what="a new keeper")
    work.signal(signal.SIGHUP)
    eventually(lambda: whats(shop) == ["master started", "new code"], 60)
    work.stop()
    assert whats(shop) == ["master started", "new code", "master stopped"]


def test_beats_go_on_if_the_server_refuses_the_events(project: Projects, redis: Client) -> None:
    redis.call("SET", "qd:events", "of another program")
    shop = project(jobs=JOBS)
    work = ready(shop)
    work.wait_line("events.refused error=.*WRONGTYPE")
    wait_for_reports(redis, 2.5)
    assert shop.qd("restart").returncode == 0
    work.ends_clean(code=0)
    assert len(work.matches("events.refused")) == 1
    assert not work.matches("redis.away")
    redis.call("DEL", "qd:events")


LEAVING = (
    JOBS
    + """
from qd import events

@app.on(events.Looping)
def look(event: events.Looping) -> None:
    os._exit(7)
"""
)


def test_a_crash_loop_is_one_event_that_is_counted(project: Projects, redis: Client) -> None:
    shop = project(jobs=LEAVING)
    work = shop.work("-w", "1")

    def counted() -> bool:
        found = [event for event in recorded(shop) if event["what"] == "crash loop"]
        return len(found) == 1 and found[0]["count"] >= 2

    eventually(counted, 60)
    work.stop()
