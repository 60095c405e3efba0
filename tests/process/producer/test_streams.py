"""Events of running jobs, followed live or read once, until the job has ended, whatever ends it; progress with a message."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from qd import Qd, current_job
from qd.config.load import load
from qd.dispatch import results
from qd.errors import ArgumentError, ConnectionLost
from qd.jobs.plan import Handle
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:job:*", *FAILED.args)]

SHOP = (
    JOBS
    + """
import asyncio, threading

@app.job("talks")
def talks(count: int = 3) -> None:
    job = current_job()
    for n in range(count):
        job.emit(n)
    held()
    thread = threading.Thread(target=job.emit, args=("the end",))
    thread.start()
    thread.join()

@app.job("atalks")
async def atalks() -> None:
    current_job().emit("begun")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    current_job().emit("the end")

@app.job("late", timeout=1, tries=1)
def late() -> None:
    current_job().emit("begun")
    try:
        time.sleep(60)
    finally:
        current_job().emit("timed out")

@app.job("dies", tries=5)
def dies() -> None:
    current_job().emit(current_job().attempt)
    note("start", os.getpid())
    held()

@app.job("forks")
def forks() -> None:
    current_job().emit(1)
    child = os.fork()
    if not child:
        try:
            current_job().emit(2)
        except Exception as error:
            note(type(error).__name__)
        os._exit(0)
    os.waitpid(child, 0)
    current_job().emit(3)

@app.job("works", result_ttl=60)
def works() -> None:
    current_job().progress(40, "scaling", step=3, of=7)
    note("start")
    held()
    current_job().progress(50)
"""
)


@pytest.fixture
def app(server: Server) -> Iterator[Qd]:
    app = Qd(server.url)
    yield app
    app.connections.close_all()


@pytest.fixture
def shop(project: MakeProject) -> Project:
    found = project(jobs=SHOP)
    found.allowed |= {"go", "witness"}
    return found


def send(app: Qd, name: str, **arguments: object) -> Handle[None]:
    return app.queue("default").push(name, arguments)


def go(shop: Project) -> None:
    (shop.root / "go").touch()


@pytest.mark.parametrize("concurrency", ["1", "4"])
@pytest.mark.parametrize("name", ["talks", "atalks"])
def test_events_arrive_while_the_job_runs(shop: Project, app: Qd, name: str, concurrency: str) -> None:
    work = ready(shop, "--concurrency", concurrency)
    handle = send(app, name)
    seen = list[object]()
    for event in handle.events():
        seen.append(event.data)
        assert len(seen) > 1 or handle.status() == "running"
        go(shop)
    assert seen == ([0, 1, 2, "the end"] if name == "talks" else ["begun", "the end"])
    assert app.handle(handle.id).status() == handle.status() == "done"
    work.stop()


def test_the_last_events_of_many_jobs_are_there_when_they_have_ended(shop: Project, app: Qd) -> None:
    @app.job("talks", result_ttl=60)
    def talks(count: int = 3) -> None: ...

    go(shop)
    work = ready(shop)
    for _ in range(5):
        handle = talks.dispatch()
        handle.result(20)
        assert [event.data for event in handle.events(wait=0)] == [0, 1, 2, "the end"]
    work.stop()


def test_a_read_with_a_time_limit_returns_as_soon_as_there_are_events(shop: Project, app: Qd) -> None:
    handle = send(app, "talks", count=150)
    assert list(handle.events(wait=0)) == list(handle.events(wait=0.05)) == []
    work = ready(shop)
    numbers = list[int]()
    while len(numbers) < 150:
        found = handle.events(since=numbers[-1] if numbers else 0, wait=30)
        numbers += [event.number for event in found]
        assert found.status is None
    assert numbers == list(range(1, 151))
    go(shop)
    last = handle.events(since=150, wait=30)
    assert [event.data for event in last] == ["the end"]
    ended = handle.events(since=last.since, wait=30)
    assert (list(ended), ended.status) == ([], "done")
    work.stop()


def test_followers_in_tasks_see_the_same_events(shop: Project, app: Qd) -> None:
    async def numbers(since: int) -> list[int]:
        return [event.number async for event in app.handle(handle.id).events(since)]

    async def all_of_them() -> list[list[int]]:
        followers = [asyncio.create_task(numbers(since)) for since in (0, 1, 2)]
        await asyncio.sleep(0)
        go(shop)
        return await asyncio.gather(*followers)

    work = ready(shop)
    handle = send(app, "talks")
    eventually(lambda: list(handle.events(wait=0)))
    assert asyncio.run(all_of_them()) == [[1, 2, 3, 4], [2, 3, 4], [3, 4]]
    work.stop()


def test_a_timeout_still_interrupts_a_job_that_has_emitted(shop: Project, app: Qd) -> None:
    work = ready(shop)
    stream = send(app, "late").events()
    assert [event.data for event in stream] == ["begun", "timed out"]
    assert stream.status == "failed"
    work.stop()
    assert work.matches("job.failed .*JobTimeout")
    assert not work.matches("worker.died")


def test_a_stream_goes_on_in_the_next_attempt_and_ends_when_the_job_is_buried(shop: Project, app: Qd) -> None:
    witness, work = Witness(shop), ready(shop, "--max-crashes", "2")
    handle = send(app, "dies")
    for n in (1, 2):
        witness.wait("start", n)
        assert [event.number for event in handle.events(n - 1, wait=10)] == [n]
        os.kill(int(witness.lines[-1].split()[1]), signal.SIGKILL)
    stream = handle.events()
    assert [event.number for event in stream] == [1, 2]
    assert stream.status == "failed"
    work.stop()


def test_a_cancelled_job_ends_its_stream(shop: Project, app: Qd) -> None:
    work = ready(shop)
    handle = send(app, "talks")
    stream = handle.events()
    for event in stream:
        if event.number == 3:
            assert handle.cancel()
    assert stream.status == "failed"
    work.stop()
    waiting = send(app, "talks")
    assert waiting.cancel()


def test_a_fork_of_the_job_cannot_emit(shop: Project, app: Qd) -> None:
    work = ready(shop)
    assert [event.data for event in send(app, "forks").events()] == [1, 3]
    assert Witness(shop).lines == ["NotInJob"]
    work.stop()


def test_an_unknown_job_has_a_stream_that_ends(app: Qd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK", 0.1)
    stream = app.handle("nobody").events()
    assert (list(stream), stream.status) == ([], "unknown")


def test_a_job_that_waits_is_followed(shop: Project, app: Qd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK", 0.01)
    seen = list[object]()
    handle = send(app, "talks")
    thread = threading.Thread(target=lambda: seen.extend(event.data for event in handle.events()))
    thread.start()
    go(shop)
    work = ready(shop)
    thread.join(30)
    assert seen == [0, 1, 2, "the end"]
    work.stop()


def test_a_job_of_the_driver_sync_has_no_events(project: MakeProject) -> None:
    shop = project()
    (shop.root / "qd.toml").write_text('[qd]\ndefault = "here"\n[connections.here]\ndriver = "sync"\n')
    app = Qd()
    app.settings = load(shop.root / "qd.toml", environ=shop.env())

    @app.job("speaks", result_ttl=60)
    def speaks() -> None:
        current_job().emit("nobody hears it")

    stream = speaks.dispatch().events()
    assert (list(stream), stream.status) == ([], "done")


def test_no_events_in_a_fake(app: Qd) -> None:
    @app.job("speaks")
    def speaks() -> None: ...

    with app.fake():
        handle = speaks.dispatch()
        assert list(handle.events(wait=0)) == []


@pytest.mark.parametrize(
    ("since", "wait", "words"),
    [
        (-1, None, "takes the number of an event as since, 0 or more, not -1"),
        (True, None, "0 or more, not True"),
        ("7", None, "0 or more, not '7'"),
        (0, -1, "wait of events"),
    ],
)
def test_invalid_arguments_are_refused(app: Qd, since: int, wait: float | None, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        app.handle("x").events(since, wait=wait)


def test_followers_wait_for_an_unreachable_server_and_reads_do_not(
    app: Qd, server: Server, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "AWAY", 0.2)
    away = Qd("redis://127.0.0.1:1/0")
    with pytest.raises(ConnectionLost):
        list(away.handle("x", queue="default").events(wait=5))
    with pytest.raises(ConnectionLost):
        list(away.handle("x", queue="default").events())


def test_events_of_a_restart_of_redis_arrive_afterwards(project: MakeProject) -> None:
    with Server(*KEEPS) as own:
        shop, app = project(jobs=SHOP, url=own.url), Qd(own.url)
        shop.allowed |= {"go", "witness"}
        work, seen = ready(shop), list[object]()
        handle = send(app, "talks")
        eventually(lambda: list(handle.events(wait=0)))
        following = threading.Thread(target=lambda: seen.extend(event.data for event in handle.events()))
        following.start()
        own.kill()
        go(shop)
        own.start()
        following.join(30)
        assert seen == [0, 1, 2, "the end"]
        work.stop()
        app.connections.close_all()


def test_progress_has_a_message_and_fields(shop: Project, app: Qd) -> None:
    witness = Witness(shop)

    @app.job("works", result_ttl=60)
    def works() -> None: ...

    handle = works.dispatch()
    assert handle.progress_details() == {}
    work = ready(shop)
    witness.wait("start")
    assert (handle.progress(), handle.progress_details()) == (40, {"message": "scaling", "step": 3, "of": 7})
    shown = shop.qd("job", handle.id)
    assert "progress  40 % scaling" in shown.stdout, shown.stdout
    go(shop)
    handle.result(10)
    assert (handle.progress(), handle.progress_details()) == (100, {})
    work.stop()
