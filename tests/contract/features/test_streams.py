"""Events of a job: a follower gets each once and in order, over two attempts of the job, and learns how the job ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from qd import Qd
from qd.config.load import load
from tests.contract.features.conftest import Cell
from tests.contract.kinds import Tried, ready

FEATURE = "Event streams"
JOBS = """
@app.job("write", tries=2, backoff=0)
def write(words: list[str]) -> None:
    job = current_job()
    for word in words:
        job.emit([job.attempt, word])
    if job.attempt == 1:
        raise ValueError("the connection to the model broke")

@app.job("broken", tries=1)
async def broken() -> None:
    current_job().emit("begun")
    raise ValueError("broken")

@app.job("silent", tries=2, backoff=0)
def silent() -> None:
    if current_job().attempt == 1:
        current_job().emit("begun")
        raise ValueError("broken")
"""


@pytest.fixture
def app(tried: Tried) -> Iterator[Qd]:
    tried.shop.jobs(JOBS)
    app = Qd()
    app.settings = load(tried.shop.root / "qd.toml", environ=tried.shop.env())
    yield app
    app.connections.close_all()


def test_followers_get_each_event_once_and_the_end_of_the_job(tried: Tried, app: Qd, cell: Cell) -> None:
    words = [f"w{n}" for n in range(150)]
    handle = app.queue("default").push("write", {"words": words})
    broken = app.queue("default").push("broken", {})
    silent = app.queue("default").push("silent", {})
    work = ready(tried.shop)

    stream = handle.events()
    seen = list(stream)
    assert [event.data for event in seen] == [[attempt, word] for attempt in (1, 2) for word in words]
    assert [event.number for event in seen] == list(range(1, 301))
    assert sorted(event.at for event in seen) == [event.at for event in seen]
    assert (stream.status, stream.since) == ("done", 300)

    async def followed() -> None:
        later = app.handle(handle.id).events(since=290)
        assert [event.number async for event in later] == list(range(291, 301))
        failed = app.handle(broken.id).events()
        assert [event.data async for event in failed] == ["begun"]
        assert (later.status, failed.status) == ("done", "failed")

    asyncio.run(followed())
    once = silent.events(wait=10)
    assert [event.data for event in once] == ["begun"]
    # Its last attempt has emitted nothing, so that there is no record of its end: a driver that finds jobs knows it is gone.
    if cell == "works":
        rest = silent.events(since=once.since)
        assert (list(rest), rest.status) == ([], "unknown")
    work.stop()
