"""Durable steps in the real worker: kept for the next attempt and with a failed job, deleted with the end of the job."""

from __future__ import annotations

import json
import signal

import pytest

from qd.drivers.keyspace.base import script
from tests.support.network import Proxy
from tests.support.payloads import push, push_raw
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import DEATHS, Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
KEYS = "qd:job:*:steps"
STEPPED = (
    JOBS
    + """
import asyncio, signal, sys
from multiprocessing import get_context
from qd import ArgumentError, LeaseLost, NotInJob

def work(name, result=None):
    note("ran", name)
    return result

async def awork(name, result=None):
    return work(name, result)

def end(how):
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit": os._exit(0)
    if how == "error": raise ValueError("not yet")
    if how == "release": current_job().release()
    if how == "hang": time.sleep(60)
    if how == "later": current_job().release(3600)

def is_first():
    first = not Path("again").exists()
    Path("again").touch()
    return first

@app.job("stepped", tries=9)
def stepped(how: str) -> None:
    job = current_job()
    found = [job.step("a", work, "a", 1), job.step("b", work, "b", 2)]
    if is_first():
        end(how)
    note("end", *found, job.step("c", work, "c", 3))

@app.job("astepped", tries=9)
async def astepped(how: str) -> None:
    job = current_job()
    found = await asyncio.gather(job.step("a", awork, "a", 1), job.step("b", awork, "b", 2))
    if is_first():
        end(how)
    note("end", *found, await job.step("c", awork, "c", 3))

@app.job("fails", tries=1)
def fails(times: int = 1) -> None:
    job = current_job()
    job.step("a", work, "a")
    if is_first():
        raise ValueError("no")
    job.step("b", work, "b")

@app.job("plain", tries=2)
def plain() -> None:
    if is_first():
        raise ValueError("no")
    note("end")

@app.job("forks")
def forks() -> None:
    job = current_job()
    job.step("a", work, "a")
    def copy():
        try:
            job.step("b", work, "b")
        except NotInJob as error:
            note("copy:", error)
    other = get_context("fork").Process(target=copy)
    other.start()
    other.join()

@app.job("many", tries=1)
def many(count: int, size: int = 1) -> None:
    job = current_job()
    for n in range(count):
        job.step(f"s{n}", str, "x" * size)
    note("stored", count)
    try:
        job.step("one more", work, "one more", "x" * size)
    except ArgumentError as error:
        note("refused:", error)

@app.job("lasts", tries=9, timeout=60)
def lasts() -> None:
    n = 0
    note("start", current_job().attempt)
    try:
        while not Path("go").exists():
            n += 1
            current_job().step(f"s{n}", time.sleep, 0.01)
    except BaseException as error:
        note("in the job", type(error).__name__)
        raise

@app.job("alasts", tries=9, timeout=60)
async def alasts() -> None:
    n = 0
    note("start", current_job().attempt)
    try:
        while not Path("go").exists():
            n += 1
            await current_job().step(f"s{n}", asyncio.sleep, 0.01)
    except BaseException as error:
        note("in the job", type(error).__name__)
        raise

@app.job("waits", tries=1, timeout=60)
def waits() -> None:
    note("start")
    held()
    note("before")
    try:
        note("result", current_job().step("a", work, "a", 7), current_job().step("b", work, "b", 8))
    except BaseException as error:
        note("in the job", type(error).__name__)
        raise

@app.job("awaits", tries=1, timeout=60)
async def awaits() -> None:
    note("start")
    await asyncio.to_thread(held)
    note("before")
    try:
        a, b = await asyncio.gather(current_job().step("a", awork, "a", 7), current_job().step("b", awork, "b", 8))
        note("result", a, b)
    except BaseException as error:
        note("in the job", type(error).__name__)
        raise
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return allowing(project(jobs=STEPPED))


def allowing(shop: Project) -> Project:
    shop.allowed |= {"again", "go"}
    return shop


@DEATHS
@pytest.mark.parametrize("options", [(), ("--concurrency", "8")], ids=["one job", "several"])
@pytest.mark.parametrize("name", ["stepped", "astepped"])
@pytest.mark.parametrize("how", ["kill", "exit", "error", "release", "hang"])
def test_the_next_attempt_runs_only_what_is_left(
    shop: Project, witness: Witness, redis: Client, how: str, name: str, options: tuple[str, ...]
) -> None:
    work = ready(shop, "--timeout", "2" if how == "hang" else "60", *options)
    push(redis, name, how=how)
    assert witness.wait("end") == ["end 1 2 3"]
    assert sorted(witness.starting("ran")) == ["ran a", "ran b", "ran c"]
    eventually(lambda: not redis.text("KEYS", KEYS), what="the steps to be deleted")
    work.stop()


@pytest.mark.leaves("queues:*:failed*")
def test_a_failed_job_keeps_its_steps_and_a_retry_continues_after_them(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push(redis, "fails")
    shop.work_off()
    (key,) = redis.text("KEYS", KEYS)
    assert 2591000 < redis.call("TTL", key) <= 2592000
    assert redis.hash(key)["a"] == "null"
    shop.quick("failed", "retry", "--all")
    shop.work_off()
    assert witness.starting("ran") == ["ran a", "ran b"]
    assert not redis.text("KEYS", KEYS)


def test_a_job_without_steps_pays_nothing(shop: Project, witness: Witness, redis: Client) -> None:
    """Also if it is tried again: the next turn acks it, and nothing else is called."""
    redis.call("SCRIPT", "FLUSH")
    push(redis, "plain")
    shop.work_off()
    assert witness.starting("end") == ["end"]
    known = {name: redis.call("SCRIPT", "EXISTS", script(name).sha)[0] for name in ("release", "ack", "steps")}
    assert known == {"release": 1, "ack": 0, "steps": 0}


def test_a_cancelled_job_has_no_steps_left(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "lasts")
    witness.wait("start")
    eventually(lambda: redis.text("KEYS", KEYS), what="a step")
    (id,) = [json.loads(text)["id"] for text in redis.text("ZRANGE", "queues:default:reserved", "0", "-1")]
    assert shop.quick("cancel", id).exit_code == 0
    assert witness.wait("in the job") == ["in the job JobCancelled"]
    work.wait_line("job.cancelled")
    assert not redis.text("KEYS", KEYS)
    work.stop()


def test_a_job_that_is_cancelled_while_it_waits_has_no_steps_left(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push(redis, "stepped", how="later")
    work = ready(shop)
    work.wait_line("job.released")
    work.stop()
    assert redis.text("KEYS", KEYS)
    (text,) = redis.text("ZRANGE", "queues:default:delayed", "0", "-1")
    assert shop.quick("cancel", json.loads(text)["id"]).exit_code == 0
    assert not redis.text("KEYS", KEYS)


@pytest.mark.parametrize("options", [(), ("--concurrency", "8")], ids=["one job", "several"])
@pytest.mark.parametrize("name", ["lasts", "alasts"])
def test_an_attempt_without_its_lease_records_no_step_once_another_has_read_them(
    shop: Project, witness: Witness, redis: Client, name: str, options: tuple[str, ...]
) -> None:
    work = ready(shop, *options)
    push(redis, name)
    witness.wait("start")
    (key,) = eventually(lambda: redis.text("KEYS", KEYS), what="a step")
    work.child("qd: keeper").suspend()  # it would find out, too, and end the job
    held = redis.call("ZRANGE", "queues:default:reserved", "0", "-1")[0]
    redis.call("ZREM", "queues:default:reserved", held)
    for owner in redis.text("HKEYS", "queues:default:owners"):
        if ":" not in owner:
            redis.call("HDEL", "queues:default:owners", owner)
    redis.call("HSET", key, "", "another.1.1.1 0")
    count = redis.call("HLEN", key)
    (found,) = witness.wait("in the job")
    assert found in ("in the job LeaseLost", "in the job CancelledError")
    assert redis.call("HLEN", key) == count
    work.child("qd: keeper").resume()
    work.wait_line("job.lease_lost .*job=a?lasts")
    redis.call("DEL", key)
    work.stop()


@pytest.mark.parametrize("how", ["deleted", "read by an attempt without a lease"])
def test_a_job_with_its_lease_goes_on_recording(shop: Project, witness: Witness, redis: Client, how: str) -> None:
    work = ready(shop)
    push(redis, "lasts")
    witness.wait("start")
    (key,) = eventually(lambda: redis.text("KEYS", KEYS), what="a step")
    redis.call("DEL", key) if how == "deleted" else redis.call("HSET", key, "", "another.1.1.1 0")
    more = redis.call("HLEN", key) + 3
    eventually(lambda: redis.call("HLEN", key) > more, what="more steps")
    (shop.root / "go").touch()
    work.wait_line("job.done")
    eventually(lambda: not redis.text("KEYS", KEYS), what="the ack, which deletes the steps")
    work.stop()


def test_a_fork_of_the_job_has_no_steps(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "forks")
    shop.work_off()
    assert [line.split(":")[0] for line in witness.lines] == ["ran a", "copy"]


@pytest.mark.parametrize(("count", "size"), [(1000, 1), (8, 131_000)])
def test_too_many_steps_or_bytes_are_refused(
    shop: Project, witness: Witness, redis: Client, count: int, size: int
) -> None:
    data = {"count": count, "size": size}
    push_raw(redis, json.dumps({"job": "many", "id": "x", "data": data, "attempts": 0}).encode())
    shop.work_off()
    assert witness.starting("stored") == [f"stored {count}"]
    (refused,) = witness.starting("refused")
    assert (
        "a job can have 1,000 steps and 1 MB of results: store large data elsewhere and return a reference" in refused
    )


@pytest.mark.leaves("queues:*:failed*")
def test_a_job_without_an_id_is_told_so(shop: Project, witness: Witness, redis: Client) -> None:
    push_raw(redis, b'{"job":"fails","data":{},"attempts":0}')
    work = shop.work_off()
    assert work.matches("job.failed .*needs a job with an id, and this payload has neither id nor uuid")
    assert not witness.lines


@pytest.mark.leaves("queues:*:failed*", KEYS)
def test_a_signed_job_takes_only_results_that_it_has_signed(project: MakeProject, redis: Client) -> None:
    shop = allowing(project(jobs=STEPPED, config='[signing]\nkeys = ["k1:0123456789abcdef0123456789abcdef"]\n'))
    witness = Witness(shop)
    shop.python("import jobs; jobs.fails.dispatch()")
    shop.work_off()
    (key,) = redis.text("KEYS", KEYS)
    stored = redis.hash(key)["a"]
    assert stored.startswith("k1.")
    redis.call("HSET", key, "a", stored.replace("null", '"forged"'))
    shop.quick("failed", "retry", "--all")
    work = shop.work_off()
    assert work.matches("job.failed .*SignatureRefused: its step 'a' does not match")
    redis.call("HSET", key, "a", stored)
    shop.quick("failed", "retry", "--all")
    shop.work_off()
    assert witness.starting("ran") == ["ran a", "ran b"]


# -- while the server is away


@pytest.mark.parametrize("options", [(), ("--concurrency", "8")], ids=["one job", "several"])
@pytest.mark.parametrize("how", ["silent", "stopped"])
@pytest.mark.parametrize("name", ["waits", "awaits"])
def test_a_step_waits_for_the_server(
    project: MakeProject, server: Server, redis: Client, name: str, how: str, options: tuple[str, ...]
) -> None:
    with Proxy(server.socket) as proxy:
        shop = allowing(project(jobs=STEPPED, url=proxy.url if how == "silent" else server.url))
        witness = Witness(shop)
        work = ready(shop, *options)
        push(redis, name)
        witness.wait("start")
        assert server.process is not None
        proxy.silence() if how == "silent" else server.process.send_signal(signal.SIGSTOP)
        (shop.root / "go").touch()
        witness.wait("before")
        work.wait_line("job.step_waits", 20)
        assert not witness.starting("result")
        proxy.heal() if how == "silent" else server.process.send_signal(signal.SIGCONT)
        assert witness.wait("result") == ["result 7 8"]
        work.wait_line("job.done")
        assert sorted(witness.starting("ran")) == ["ran a", "ran b"]
        assert not work.matches("lease_lost")
        assert not redis.text("KEYS", KEYS)
        work.stop()


@pytest.mark.leaves("queues:*:failed*", "queues:*:deaths", KEYS)
@pytest.mark.parametrize("options", [(), ("--concurrency", "8")], ids=["one job", "several"])
@pytest.mark.parametrize("name", ["waits", "awaits"])
def test_the_timeout_ends_a_step_that_waits(
    project: MakeProject, server: Server, redis: Client, name: str, options: tuple[str, ...]
) -> None:
    with Proxy(server.socket) as proxy:
        shop = allowing(project(jobs=STEPPED.replace("timeout=60", "timeout=3"), url=proxy.url))
        witness = Witness(shop)
        work = ready(shop, *options)
        push(redis, name)
        witness.wait("start")
        proxy.silence()
        (shop.root / "go").touch()
        work.wait_line("job.step_waits", 20)
        witness.wait("in the job", 1)
        proxy.heal()
        work.wait_line("job.failed .*JobTimeout", 30)
        work.stop()
