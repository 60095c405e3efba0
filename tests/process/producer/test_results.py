"""Handles: the status of a job, its result in another process, its progress, and cancelling it in any state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from qd import Qd
from qd.dispatch import results
from qd.drivers.keyspace.records import KeptJobs
from qd.errors import DeclarationError, JobFailedError, NoResult
from qd.jobs.job import JobFunction
from qd.jobs.plan import Handle
from tests.support.payloads import push_laravel
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:job:*")]

SHOP = (
    JOBS
    + """
import asyncio
from dataclasses import dataclass

@dataclass
class Sum:
    total: int

def around(job, call_next):
    result = call_next()
    return Sum(result.total + 1000) if isinstance(result, Sum) and result.total == 7 else result

@app.job("adds", middleware=[around])
def adds(a: int, b: int) -> Sum:
    return Sum(a + b)

@app.job("aadds")
async def aadds(a: int, b: int) -> Sum:
    await asyncio.sleep(0.01)
    return Sum(a + b)

@app.job("odd")
def odd(what: str) -> object:
    return {"object": object(), "nan": float("nan"), "long": "x" * 2_000_000, "none": None}[what]

@app.job("fails")
def fails(why: str) -> None:
    raise ValueError(why)

@app.job("steps")
def steps() -> None:
    job = current_job()
    job.progress(12.5)
    note("called")
    while not Path("go").exists():
        time.sleep(0.01)
    Path("go").unlink()
    job.progress(50)

@app.job("keeps", result_ttl=60)
def keeps(a: int = 0) -> int:
    current_job().progress(50)
    if a < 0:
        raise ValueError(a)
    return a

@app.job("akeeps", result_ttl=60)
async def akeeps(a: int) -> int:
    return a

@app.job("sleeps", tries=5)
def sleeps(seconds: float = 60) -> str:
    note("start", current_job().attempt)
    time.sleep(seconds)
    note("slept")
    return "well slept"

@app.job("dozes", tries=5)
async def dozes() -> None:
    note("start", current_job().attempt)
    await asyncio.sleep(60)

@app.job("stuck", tries=5)
def stuck() -> None:
    note("start", current_job().attempt)
    sum(range(10**12))
"""
)


@dataclass
class Sum:
    total: int


class Jobs:
    """The shop's jobs, as a producer in this process knows them."""

    def __init__(self, url: str) -> None:
        self.app = app = Qd(url)

        @app.job("adds", result_ttl=60)
        def adds(a: int, b: int) -> Sum:
            raise NotImplementedError

        self.adds = adds

        @app.job("odd", result_ttl=60)
        def odd(what: str) -> object: ...

        @app.job("fails", result_ttl=60)
        def fails(why: str) -> None: ...

        @app.job("steps", result_ttl=60)
        def steps() -> None: ...

        @app.job("sleeps", result_ttl=60)
        def sleeps(seconds: float = 60) -> str:
            raise NotImplementedError

        self.odd, self.fails, self.steps, self.sleeps = odd, fails, steps, sleeps

    def plain(self, name: str) -> JobFunction[..., None, None]:
        """One that keeps no result."""

        def job() -> None: ...

        found: JobFunction[..., None, None] = self.app.job(name)(job)
        return found


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP)


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    made = Jobs(server.url)
    yield made
    made.app.connections.close()


def test_what_a_job_returns_is_there_for_other_processes(shop: Project, jobs: Jobs) -> None:
    handle = jobs.adds.dispatch(2, 3)
    assert handle.status() == "ready"
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
        handle.result(timeout=0.05)
    work = ready(shop)
    assert handle.result(timeout=10) == Sum(5)
    assert handle.status() == "done"
    seen = shop.python(
        f"""
        from datetime import timedelta
        from jobs import app
        handle = app.handle({handle.id!r}, queue="default")
        print(handle.status(), handle.result(timedelta(seconds=5)))
        """
    )
    assert seen.stdout == "done {'total': 5}\n"
    assert jobs.adds.dispatch(3, 4).result(10) == Sum(1007)  # through the middleware
    work.stop()


def test_an_async_job_has_a_result_and_can_be_waited_for(shop: Project, jobs: Jobs) -> None:
    @jobs.app.job("aadds", result_ttl=60)
    async def aadds(a: int, b: int) -> Sum:
        raise NotImplementedError

    work = ready(shop)

    async def waits() -> list[Sum]:
        handles = [await aadds.adispatch(n, n) for n in range(3)]
        return [await handle.aresult(10) for handle in handles]

    assert asyncio.run(waits()) == [Sum(0), Sum(2), Sum(4)]
    work.stop()


UNFIT = [("object", "JSON cannot carry what the job returned"), ("nan", "not a JSON number"), ("long", "max_payload")]


@pytest.mark.parametrize(("what", "error"), UNFIT)
def test_a_result_that_cannot_be_stored_is_reported_and_harms_nothing(
    shop: Project, jobs: Jobs, what: str, error: str
) -> None:
    handle = jobs.odd.dispatch(what)
    work = shop.work_off()
    assert handle.status() == "done"
    with pytest.raises(NoResult, match=f"job {handle.id} has succeeded, and its result is not kept: .*{error}"):
        handle.result(1)
    assert not work.matches("job.failed")


FORGED = [b"", b"{", b"\xff", b"[" * 100_000, b'{"total":' * 5000]


@pytest.mark.parametrize(("status", "error"), [("done", NoResult), ("failed", JobFailedError)])
@pytest.mark.parametrize("value", FORGED, ids=["nothing", "cut", "no text", "deep", "objects, deep"])
def test_a_record_that_qd_has_not_written_is_reported(
    jobs: Jobs, redis: Client, value: bytes, status: str, error: type[Exception]
) -> None:
    redis.call("HSET", "qd:job:forged", "status", status, "value", value)
    handle = jobs.app.handle("forged")
    with pytest.raises(error, match="job forged"):
        handle.result(1)


def test_nothing_is_a_result_too(shop: Project, jobs: Jobs) -> None:
    handle = jobs.odd.dispatch("none")
    shop.work_off()
    assert (handle.result(1), handle.status()) == (None, "done")


@pytest.mark.leaves("queues:*:failed", "queues:*:failed_at")
def test_a_failed_job_raises_its_words(shop: Project, jobs: Jobs) -> None:
    Witness(shop)
    handle, plain = jobs.fails.dispatch("out of paper"), jobs.plain("boom").dispatch()
    shop.work_off()
    assert handle.status() == plain.status() == "failed"
    with pytest.raises(JobFailedError, match=f"job {handle.id} has failed: ValueError: out of paper") as raised:
        handle.result(1)
    assert (raised.value.kind, raised.value.message) == ("ValueError", "out of paper")


@pytest.mark.leaves("queues:*:failed", "queues:*:failed_at")
def test_a_failed_job_that_is_retried_waits_again(
    shop: Project, jobs: Jobs, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK", 0.05)
    handle = jobs.fails.dispatch("out of paper")
    shop.work_off()
    redis.call("DEL", f"qd:job:{handle.id}")  # expired; the failed store still has the failure
    with pytest.raises(JobFailedError, match="ValueError: out of paper"):
        handle.result(10)
    assert handle.status() == "failed"
    shop.work_off()
    assert shop.qd("failed", "retry", "--all").returncode == 0
    assert handle.status() == "ready"
    with pytest.raises(TimeoutError):
        handle.result(0.2)
    shop.work_off()
    with pytest.raises(JobFailedError, match="ValueError: out of paper"):
        handle.result(1)
    assert shop.qd("failed", "retry", "--all").returncode == 0
    assert handle.status() == "ready"  # and not the status in the record of its last end
    assert handle.cancel() is True


def test_without_result_ttl_nothing_is_kept_and_waiting_is_refused(shop: Project, jobs: Jobs, redis: Client) -> None:
    handle, later = jobs.plain("quick").dispatch(), jobs.plain("boom").using(delay=60).dispatch()
    assert (handle.status(), later.status()) == ("ready", "delayed")
    with pytest.raises(NoResult, match="declare or send it with result_ttl"):
        handle.result(1)
    Witness(shop)
    shop.work_off()
    assert handle.status() == "unknown"
    assert handle.progress() is None
    assert not redis.text("KEYS", "qd:job:*")
    assert later.cancel() is True
    with pytest.raises(DeclarationError, match=r"has no queue: make it with app\.handle"):
        Handle("x").status()


@pytest.mark.leaves("queues:default:failed*")
@pytest.mark.parametrize("words", [(), ("--concurrency", "4")])
def test_a_job_that_php_pushes_keeps_its_result_as_declared(
    shop: Project, jobs: Jobs, redis: Client, words: tuple[str, ...]
) -> None:
    push_laravel(redis, "keeps", {"a": 3}, id="one")
    push_laravel(redis, "akeeps", {"a": 4}, id="two")
    push_laravel(redis, "keeps", {"a": -1}, id="bad")
    jobs.plain("keeps").dispatch()  # its producer decides otherwise
    shop.work_off(*words)
    assert [jobs.app.handle(id).result(0) for id in ("one", "two")] == [3, 4]
    assert jobs.app.handle("one").progress() == 100
    with pytest.raises(JobFailedError, match="-1"):
        jobs.app.handle("bad").result(0)
    assert sorted(redis.text("KEYS", "qd:job:*")) == ["qd:job:bad", "qd:job:one", "qd:job:two"]


def test_waiting_for_an_unknown_id_raises_at_once(shop: Project, jobs: Jobs) -> None:
    with pytest.raises(NoResult, match="it is unknown"):
        jobs.app.handle("nosuch").result(1)
    handle = jobs.adds.dispatch(1, 1)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
        jobs.app.handle(handle.id).result(0.05)
    assert handle.cancel() is True
    with pytest.raises(JobFailedError, match="JobCancelled"):
        jobs.app.handle(handle.id).result(1)


def test_a_result_expires(shop: Project, jobs: Jobs, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK", 0.05)
    handle = jobs.adds.using(result_ttl=1).dispatch(1, 1)
    shop.work_off()
    eventually(lambda: handle.status() == "unknown", 20)
    assert not redis.leftovers()
    with pytest.raises(NoResult, match="it is unknown"):
        handle.result()


def test_progress(shop: Project, jobs: Jobs) -> None:
    witness, handle = Witness(shop), jobs.steps.dispatch()
    assert handle.progress() is None
    work = ready(shop)
    witness.wait("called")
    assert (handle.progress(), handle.status()) == (12.5, "running")
    (shop.root / "go").touch()
    handle.result(10)
    assert handle.progress() == 100, "its last progress was 50, and it is done"
    work.stop()


def test_a_restart_of_redis_is_waited_out(project: MakeProject) -> None:
    with Server(*KEEPS) as own:
        shop, jobs = project(jobs=SHOP, url=own.url), Jobs(own.url)
        work, got = ready(shop), list[object]()
        handle = jobs.sleeps.dispatch(1.0)
        Witness(shop).wait("start")
        waiting = threading.Thread(target=lambda: got.append(handle.result(30)))
        waiting.start()
        own.kill()
        own.start()
        waiting.join(30)
        assert got == ["well slept"]
        work.stop()
        jobs.app.connections.close()


# -- cancel


def test_waiting_jobs_are_cancelled(shop: Project, jobs: Jobs) -> None:
    witness = Witness(shop)
    now, later, last = jobs.sleeps.dispatch(), jobs.sleeps.using(delay=60).dispatch(), jobs.adds.dispatch(1, 1)
    assert now.cancel() is later.cancel() is True
    assert now.cancel() is later.cancel() is False
    assert now.status() == later.status() == "failed"
    with pytest.raises(JobFailedError, match="JobCancelled") as raised:
        now.result(1)
    assert raised.value.kind == "JobCancelled"
    shop.work_off()
    assert not witness.lines
    assert last.result(1) == Sum(2)
    assert last.cancel() is False
    assert jobs.app.handle("nobody").cancel() is False


@pytest.mark.parametrize("name", ["sleeps", "dozes", "stuck"])
def test_a_running_job_is_cancelled_on_another_master(shop: Project, jobs: Jobs, name: str) -> None:
    """Two masters work; the producer knows neither."""
    witness, works = Witness(shop), [ready(shop), ready(shop)]
    handle = jobs.plain(name).dispatch() if name != "sleeps" else jobs.sleeps.dispatch()
    witness.wait("start")
    assert handle.status() == "running"
    assert handle.cancel() is True
    eventually(lambda: handle.status() in ("failed", "unknown"), 20)
    if name == "sleeps":
        with pytest.raises(JobFailedError, match="JobCancelled"):
            handle.result(10)
    eventually(lambda: any(work.matches("job.cancelled") for work in works), 20)
    assert handle.cancel() is False
    for work in works:
        work.stop()
    assert len(witness.starting("start")) == 1
    assert not witness.starting("slept")


def test_a_ready_job_that_workers_take_has_run_or_was_cancelled_and_never_both(
    shop: Project, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only waiting jobs are cancelled here: one that runs is left alone."""
    monkeypatch.setattr(KeptJobs, "stop", lambda *_: False)
    witness = Witness(shop)

    @jobs.app.job("quick", result_ttl=60)
    def quick(n: int = 0) -> None: ...

    handles = jobs.app.dispatch(*[quick.bind(n) for n in range(400)])
    work = ready(shop, "--rest", "0.1", workers=2)  # who cancels is faster than they are, also on a busy machine
    witness.wait("quick")
    dropped = {n: handle.cancel() for n, handle in reversed(list(enumerate(handles)))}
    eventually(lambda: all(handle.status() in ("done", "failed") for handle in handles), 30)
    work.stop()
    ran = {int(line.split()[1]) for line in witness.starting("quick")}
    assert {n for n, was_dropped in dropped.items() if not was_dropped} == ran
    assert {n for n, handle in enumerate(handles) if handle.status() == "done"} == ran
    assert 0 < len(ran) < 400


KILLED = (
    SHOP
    + """
import signal
from qd.drivers.redis.queue import RedisQueue

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

whole = RedisQueue.ack

def ack(queue, done, effects=()):
    if effects and not Path("hit").exists():
        Path("hit").touch()
        if os.environ["POINT"] == "before":
            die()
        if os.environ["POINT"] == "sent":
            send = queue.connection.send
            queue.connection.send = lambda command: die(send(command))
        whole(queue, done, effects)
        die()
    return whole(queue, done, effects)

RedisQueue.ack = ack
"""
)
STANDS = "return redis.call('EXISTS', KEYS[1]) + redis.call('LLEN', KEYS[2]) + redis.call('ZCARD', KEYS[3])"


@pytest.mark.leaves("queues:*:deaths")
@pytest.mark.parametrize("point", ["before", "sent", "replied"])
def test_a_result_is_there_exactly_when_the_job_is_acked(
    project: MakeProject, jobs: Jobs, redis: Client, point: str
) -> None:
    """The worker is killed between the end of the job and the answer of the server."""
    shop = project(jobs=KILLED)
    shop.allowed.add("hit")
    witness, handle = Witness(shop), jobs.sleeps.dispatch(0.0)
    keys, seen = (f"qd:job:{handle.id}", "queues:default", "queues:default:reserved"), set[int]()

    def is_done() -> bool:
        seen.add(redis.call("EVAL", STANDS, "3", *keys))
        return handle.status() == "done"

    work = ready(shop, POINT=point)
    eventually(is_done, 20, every=0)
    work.wait_line("worker.died")
    eventually(lambda: work.matches("master.ready") and is_done(), 20)
    work.stop()
    assert seen == {1}  # in the queue, or in the record; never in both, never in neither
    assert len(witness.starting("slept")) == (2 if point == "before" else 1)
    assert handle.result(1) == "well slept"
