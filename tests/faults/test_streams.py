"""Events of jobs whose workers are killed, and whose server is: numbers never repeat, and nothing that was sent is lost."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from itertools import groupby
from typing import Any

import pytest

from qd import Qd
from qd.drivers.types import JobEvent
from qd.jobs.plan import Handle
from tests.support.processes import Procs
from tests.support.project import SOURCE, MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:job:*", *FAILED.args)]
COUNT = 70  # events of an attempt: more than are collected at most
JOBS = f"""
import asyncio

@app.job("counts", tries=1000, backoff=0)
def counts(pause: float = 0.0, count: int = {COUNT}) -> None:
    job = current_job()
    for n in range(count):
        job.emit([job.mark, n])
        time.sleep(pause)

@app.job("acounts", tries=1000, backoff=0)
async def acounts(pause: float = 0.0, count: int = {COUNT}) -> None:
    job = current_job()
    for n in range(count):
        job.emit([job.mark, n])
        await asyncio.sleep(pause)
"""


class Follower:
    """Follows a job in a thread."""

    def __init__(self, app: Qd, handle: Handle[None]) -> None:
        self.handle, self.seen = handle, list[JobEvent]()
        self.stream = app.handle(handle.id, queue="default").events()
        self.thread = threading.Thread(target=lambda: self.seen.extend(self.stream))
        self.thread.start()

    def sees(self, count: int) -> bool:
        return len(self.seen) >= count

    def attempts(self, count: int = COUNT) -> int:
        """Wait for the end, and check what was seen: each attempt from its first event on, in order, without a gap, and the
        last one completely. Returns how many attempts have emitted."""
        self.thread.join(120)
        assert not self.thread.is_alive(), f"the stream does not end: {len(self.seen)} events"
        assert self.stream.status == "done"
        assert [event.number for event in self.seen] == list(range(1, len(self.seen) + 1))
        runs = [
            [n for _, n in run] for _, run in groupby([event.data for event in self.seen], key=lambda data: data[0])
        ]
        assert all(run == list(range(len(run))) for run in runs)
        assert len(runs[-1]) == count
        return len(runs)


@pytest.fixture
def app(server: Server) -> Any:
    app = Qd(server.url)
    yield app
    app.connections.close_all()


def killed(shop: Project, each: int, *words: str) -> Procs:
    """`qd work` whose workers are killed at each n-th line that collects or sends events."""
    command = [sys.executable, "-m", "tests.support.faults", "each-line", str(shop.run / "lines"), "work", *words]
    path = os.pathsep.join([shop.env()["PYTHONPATH"], str(SOURCE.parent)])
    procs = Procs(command, cwd=shop.root, env=shop.env(PYTHONPATH=path, LINES_EACH=str(each), LINES_OF="emitters"))
    shop.started.append(procs)
    return procs


@pytest.mark.fault(
    "75",
    "kill -9 of a worker at each line that collects or sends events of a job",
    "followers see no number twice and no gap; the next attempt continues the stream",
)
def test_a_worker_killed_at_any_line_repeats_no_number(
    project: MakeProject, app: Qd, redis: Client, figures: Figures, mode: str
) -> None:
    shop, runs = project(jobs=JOBS), 0
    work = killed(shop, 1 if figures.strict else 2, "-w", "1", "--max-crashes", "100000")
    work.wait_line("master.ready")
    file, lines, quiet = shop.run / "lines", 0, 0
    while quiet < 3:  # each worker spares its first job
        follower = Follower(app, app.queue("default").push("counts", {"pause": 0.001}))
        runs += follower.attempts()
        now = len(file.read_text().splitlines()) if file.exists() else 0
        quiet, lines = (quiet + 1, lines) if now == lines else (0, now)
    work.stop()
    file.unlink()
    assert lines >= (25 if figures.strict else 8)
    assert runs >= lines
    figures.add(kills=lines, attempts=runs)


@pytest.mark.fault(
    "76",
    "the server is killed and started again while jobs emit and others read",
    "each event arrives once, in order",
)
@pytest.mark.parametrize("job", ["counts", "acounts"])
def test_a_restart_of_the_server_loses_and_repeats_no_event(
    job: str, project: MakeProject, figures: Figures, mode: str
) -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as own:
        shop, app = project(jobs=JOBS, url=own.url), Qd(own.url)
        work = ready(shop, workers=2)
        followers = [Follower(app, app.queue("default").push(job, {"pause": 0.005, "count": 600})) for _ in range(2)]
        for _ in range(3):
            before = len(followers[0].seen)
            eventually(partial(followers[0].sees, before + 20), 30)
            own.kill()
            own.start()
        assert [follower.attempts(600) for follower in followers] == [1, 1]
        work.stop()
        assert not work.matches("events_dropped")
        app.connections.close_all()
