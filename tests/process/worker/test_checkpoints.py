"""The state a job saves with job.checkpoint(): the next attempt gets it, however the one before ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support.network import Proxy
from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import DEATHS, FAILED, Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

STEPS = (
    JOBS
    + """
import asyncio, signal, threading
from multiprocessing import get_context
from qd import JobInterrupted, JobTimeout, NotInJob

def end(how):
    job = current_job()
    if how == "release": job.release()
    if how == "error": raise ValueError("not yet")
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit": os._exit(0)
    if how == "hang": time.sleep(60)
    if how == "stuck": sum(range(10**12))

@app.job("steps", tries=9)
def steps(how: str) -> None:
    job = current_job()
    note("saw", job.saved, "attempt", job.attempt)
    if job.saved == {"row": 2}:
        return
    job.checkpoint({"row": 1})
    job.checkpoint({"row": (job.saved or {"row": 0})["row"] + 1})
    end(how)

@app.job("asteps", tries=9)
async def asteps(how: str) -> None:
    await asyncio.sleep(0)
    job = current_job()
    note("saw", job.saved, "attempt", job.attempt)
    if job.saved == {"row": 2}:
        return
    await asyncio.gather(*[asyncio.to_thread(job.checkpoint, n) for n in range(20)])
    job.checkpoint({"row": 2})
    end(how)

@app.job("careful", tries=1)
def careful() -> None:
    job = current_job()
    note("saw", job.saved, "attempt", job.attempt)
    if job.saved:
        return
    try:
        time.sleep(60)
    except JobInterrupted:
        job.checkpoint("the place")
        raise

@app.job("rude", tries=1)
def rude() -> None:
    job = current_job()
    note("saw", job.saved, "attempt", job.attempt)
    if not job.saved:
        job.checkpoint("the place")
        sum(range(10**12))

@app.job("many", tries=2)
def many(times: int) -> None:
    for n in range(times):
        current_job().checkpoint(n)
    note("saved", current_job().saved)

@app.job("failing", tries=1)
def failing() -> None:
    current_job().checkpoint("as far as here")
    raise ValueError("no")

late = []

@app.job("leaves a thread")
def leaves_a_thread() -> None:
    late.append(current_job())

@app.job("too late")
def too_late() -> None:
    try:
        late[0].checkpoint(1)
    except NotInJob as error:
        note("too late:", error)
    def copy() -> None:
        try:
            current_job().checkpoint(1)
        except NotInJob as error:
            note("copy:", error)
    other = get_context("fork").Process(target=copy)
    other.start()
    other.join()

@app.job("from a handler", tries=1, timeout=20)
def from_a_handler() -> None:
    job = current_job()
    signal.signal(signal.SIGWINCH, lambda *_: job.checkpoint("handler"))
    stop = threading.Event()
    def rain() -> None:
        while not stop.is_set():
            os.kill(os.getpid(), signal.SIGWINCH)
    thread = threading.Thread(target=rain)
    thread.start()
    for n in range(300):
        job.checkpoint(n)
    stop.set()
    thread.join()
    note("saved", job.saved)

@app.job("astolen", tries=5, timeout=20)
async def astolen() -> None:
    note("start", os.getpid())
    try:
        while True:
            current_job().checkpoint(time.time())
            await asyncio.sleep(0)
    except BaseException as error:
        note("in the job", type(error).__name__)
        raise

@app.job("stolen", tries=5, timeout=20)
def stolen(thread: bool) -> None:
    job = current_job()
    begun = threading.Event()
    def save() -> None:
        begun.wait(60)
        note("start", os.getpid())
        try:
            while True:
                job.checkpoint(time.time())
        except BaseException as error:
            note("in the caller", type(error).__name__)
            raise
    if not thread:
        begun.set()
        save()
    other = threading.Thread(target=save)
    other.start()
    try:
        begun.set()
        while True:
            time.sleep(0.01)
    except BaseException as error:
        note("in the job", type(error).__name__)
        raise
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=STEPS)


# how it ends -> the second attempt's number
ENDS = {"release": 2, "error": 2, "kill": 1, "exit": 1, "hang": 2, "stuck": 2}


@DEATHS
@pytest.mark.parametrize("name", ["steps", "asteps"])
@pytest.mark.parametrize("how", ENDS)
def test_the_next_attempt_sees_what_this_one_saved_whatever_ended_it(
    shop: Project, witness: Witness, redis: Client, how: str, name: str
) -> None:
    work = ready(shop, "--max-jobs", "9", "--timeout", "2" if how in ("hang", "stuck") else "60")
    push(redis, name, how=how)
    assert witness.wait("saw", 2) == ["saw None attempt 1", f"saw {{'row': 2}} attempt {ENDS[how]}"]
    work.wait_line("job.done")
    work.stop()


@pytest.mark.parametrize("name", ["careful", "rude"])
def test_an_interrupted_job_saves_its_place_and_is_handed_back_with_it(
    shop: Project, witness: Witness, redis: Client, name: str
) -> None:
    work = ready(
        shop, "--stop-timeout", "5s" if name == "careful" else "1s"
    )  # qd warns it a fifth of that before the end
    push(redis, name)
    witness.wait("saw")
    if name == "rude":
        has_saved(redis)
    work.stop()
    assert work.matches("master.stopped .*handed_back=1 exit=0")
    again = ready(shop)
    assert witness.wait("saw", 2) == ["saw None attempt 1", "saw the place attempt 1"]
    again.wait_line("job.done")
    again.stop()


def has_saved(redis: Client) -> None:
    """Until the one job that runs has."""
    held: Callable[[], list[str]] = lambda: redis.text("ZRANGE", "queues:default:reserved", "0", "-1")  # noqa: E731
    eventually(lambda: ['"saved"' in one for one in held()] == [True], what="what it saves")


@DEATHS
def test_it_is_kept_when_the_whole_tree_is_killed(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "rude")
    witness.wait("saw")
    has_saved(redis)
    work.kill()
    again = ready(shop)
    assert witness.wait("saw", 2) == ["saw None attempt 1", "saw the place attempt 1"]
    again.wait_line("job.done")
    again.stop()


@FAILED
def test_a_failed_job_keeps_it(shop: Project, redis: Client) -> None:
    push(redis, "failing")
    shop.work_off()
    ((_, raw),) = failed(redis)
    assert b'"saved":"ImFzIGZhciBhcyBoZXJlIg"' in raw


def test_checkpoints_cost_no_job_its_ack(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "many", times=200)
    work = shop.work("-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert witness.starting("saved") == ["saved 199"]
    assert not work.matches("lease")


def test_a_checkpoint_works_only_in_the_current_job_and_in_its_own_process(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push(redis, "leaves a thread")
    push(redis, "too late")
    shop.work_off()
    assert [line.split(":")[0] for line in witness.lines] == ["too late", "copy"]


def test_a_checkpoint_from_a_signal_handler_breaks_into_no_other(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push(redis, "from a handler")
    work = shop.work_off()
    assert work.matches("job.done")
    assert witness.starting("saved")


@FAILED
def test_a_signed_job_takes_only_what_it_has_saved_itself(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=STEPS, config='[signing]\nkeys = ["k1:0123456789abcdef0123456789abcdef"]\n')
    witness = Witness(shop)
    shop.python("import jobs; jobs.steps.dispatch('release')")
    work = ready(shop, "--stop-timeout", "1s")
    assert witness.wait("saw", 2) == ["saw None attempt 1", "saw {'row': 2} attempt 2"]
    shop.python("import jobs; jobs.rude.dispatch()")
    witness.wait("saw", 3)
    has_saved(redis)
    work.stop()
    (payload,) = redis.text("LRANGE", "queues:default", "0", "-1")
    redis.call("DEL", "queues:default")
    forged = payload.replace(payload.split('"saved":"')[1].split('"')[0], "ImhlciBwbGFjZSI")  # "her place"
    redis.call("RPUSH", "queues:default", forged)
    again = ready(shop)
    again.wait_line("job.failed .*its checkpoint does not match")
    again.stop()
    assert len(witness.starting("saw")) == 3


@pytest.mark.parametrize("caller", ["the job itself", "a thread of it", "an async job"])
def test_a_checkpoint_that_finds_the_lease_gone_ends_the_job(
    shop: Project, witness: Witness, redis: Client, caller: str
) -> None:
    work = ready(shop, "--log-level", "debug")
    if caller == "an async job":
        push(redis, "astolen")
    else:
        push(redis, "stolen", thread=caller == "a thread of it")
    witness.wait("start")
    while True:
        held = redis.call("ZRANGE", "queues:default:reserved", "0", "-1")
        if held and redis.call("ZREM", "queues:default:reserved", held[0]):
            break
    if caller != "an async job":
        assert witness.wait("in the caller") == ["in the caller LeaseLost"]
    if caller != "the job itself":
        how = "CancelledError" if caller == "an async job" else "LeaseLost"
        assert witness.wait("in the job") == [f"in the job {how}"]
    work.wait_line("job.lease_lost .*job=a?stolen")
    work.wait_line(r"worker.left .*exit 15 \(raised\)")
    work.stop()
    assert len(witness.starting("start")) == 1


def test_with_no_worker_process_it_is_kept_too(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "steps", how="release")
    work = shop.work("-w", "0", "--stop-when-empty")
    work.ends_clean()
    assert witness.lines == ["saw None attempt 1", "saw {'row': 2} attempt 2"]


# -- while the server is away


AWAY = (
    JOBS
    + """
@app.job("through", tries=2)
def through() -> None:
    job = current_job()
    note("saw", job.saved)
    if job.saved:
        return
    job.checkpoint("early")
    note("early")
    while not Path("go").exists():
        began = time.monotonic()
        job.checkpoint("late")
        took = time.monotonic() - began
        if took > 4:  # as long as another call would wait
            note("slow", took)
        time.sleep(0.01)
    Path("go").unlink()
    note("late")
    raise ValueError("once more")

@app.job("done", tries=1)
def done() -> None:
    note("start")
    for n in range(100_000):
        current_job().checkpoint(n)
        if Path("go").exists():
            break
    Path("go").unlink()
    note("end")
"""
)


@pytest.fixture
def own() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize("how", ["silent", "stopped"])
def test_while_the_server_is_away_it_is_remembered_and_goes_with_the_answer(
    project: MakeProject, server: Server, redis: Client, how: str
) -> None:
    with Proxy(server.socket) as proxy:
        shop = project(jobs=AWAY, url=proxy.url if how == "silent" else server.url)
        witness = Witness(shop)
        work = ready(shop)
        push(redis, "through")
        witness.wait("early")
        assert server.process is not None
        proxy.silence() if how == "silent" else server.process.send_signal(signal.SIGSTOP)
        work.wait_line("redis.away", 20)
        (shop.root / "go").touch()
        witness.wait("late")
        proxy.heal() if how == "silent" else server.process.send_signal(signal.SIGCONT)
        assert witness.wait("saw", 2) == ["saw None", "saw late"]
        assert not witness.starting("slow")
        work.wait_line("job.done")
        assert not work.matches("lease_lost")
        work.stop()


def test_replies_that_are_lost_cost_no_job_its_ack(project: MakeProject, server: Server, redis: Client) -> None:
    """A checkpoint whose reply is lost was stored: the ack matches the stored payload, and the job runs once."""
    with Proxy(server.socket) as proxy:
        shop = project(jobs=AWAY, url=proxy.url)
        witness = Witness(shop)
        work = ready(shop)
        for count in range(1, 13):
            push(redis, "done")
            witness.wait("start", count)
            proxy.cut(reply=count % 3)
            (shop.root / "go").touch()
            witness.wait("end", count)
            work.wait_line("job.done", count=count)
        work.stop()
        assert not work.matches("lease_lost|job.failed|worker.died")
        assert len(witness.starting("start")) == 12
    assert os.path.exists(shop.root / "witness")
