"""Several jobs at once in one worker: async jobs as tasks, others in threads, and none suffers from another."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from itertools import accumulate
from pathlib import Path

import pytest

from qd.payload.build import make
from tests.support.payloads import failed, push
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.modes("concurrency", why="each test is about jobs that run at the same time"),
]

# After a death the fence of its worker stays for three seconds.
DEATHS = pytest.mark.leaves(*(f"queues:*:{kind}" for kind in ("failed", "failed_at", "deaths", "owners")))
SHARED = (
    JOBS
    + """
import asyncio, contextvars, ctypes, threading
from qd import events

here = contextvars.ContextVar("here", default=None)

@app.job("nap", timeout=0)
async def nap(seconds: float, n: int = 0) -> None:
    note("nap", n, os.getpid())
    await asyncio.sleep(seconds)
    note("woke", n)

@app.job("naps")
def naps(seconds: float, n: int = 0) -> None:
    note("nap", n, os.getpid())
    time.sleep(seconds)
    note("woke", n)

@app.job("asleep", tries=1)
async def asleep(n: int = 0) -> None:
    note("start", n, os.getpid(), current_job().interrupted)
    try:
        while not Path("go").exists():
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note("raised", type(current_job().ended_by).__name__)
        raise
    note("end", n, current_job().attempt)

@app.job("threaded", tries=1)
def threaded(n: int = 0) -> None:
    note("start", n, os.getpid(), current_job().interrupted)
    try:
        held()
    except BaseException as error:
        note("raised", type(error).__name__, type(current_job().ended_by).__name__)
        raise
    note("end", n, current_job().attempt)

@app.job("stubborn", timeout=1, tries=1)
async def stubborn() -> None:
    note("stubborn")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.job("loops", timeout=1, tries=1)
def loops() -> None:
    while True:
        pass

@app.job("in_c", timeout=1, tries=1)
def in_c() -> None:
    note("in_c")
    time.sleep(300)

@app.job("keeps_lock", timeout=1, tries=1)
def keeps_lock() -> None:
    note("keeps_lock")
    sum(range(10**12))

@app.job("groups", timeout=1, tries=1)
async def groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        await asyncio.to_thread(time.sleep, 1.5)

@app.job("blocks", timeout=2, tries=1)
async def blocks() -> None:
    note("blocks")
    time.sleep(300)

@app.job("crashes", tries=1)
def crashes() -> None:
    note("crashes", current_job().attempt)
    ctypes.string_at(0)

@app.job("crashes_on_loop", tries=1)
async def crashes_on_loop() -> None:
    note("crashes")
    ctypes.string_at(0)

@app.job("alone", exclusive=True)
def alone() -> None:
    note("alone", threading.current_thread() is threading.main_thread())
    time.sleep(0.2)
    note("after")

@app.job("saves", tries=2, backoff=0)
async def saves() -> None:
    job = current_job()
    note("saved", job.saved)
    if job.saved is None:
        job.checkpoint({"at": 7})
        raise ValueError("again")

@app.job("sees")
async def sees(n: int) -> None:
    assert here.get() is None
    here.set(n)
    await asyncio.sleep(0.05)
    other = await asyncio.to_thread(lambda: (current_job().id, here.get()))
    child = await asyncio.create_task(see())
    note("sees", here.get() == n, other == (current_job().id, n), child == other)

async def see():
    await asyncio.sleep(0.01)
    return current_job().id, here.get()

@app.job("tsees")
def tsees(n: int) -> None:
    assert here.get() is None
    here.set(n)
    time.sleep(0.05)
    note("sees", here.get() == n, current_job().arguments == {"n": n})

@app.job("exits", tries=1)
async def exits() -> None:
    sys.exit(3)

@app.job("forks", tries=1)
def forks() -> None:
    if os.fork() == 0:
        note("copy")
        return
    os.wait()
    note("forked")

@app.job("aforks", tries=1)
async def aforks() -> None:
    if os.fork() == 0:
        note("copy")
        await asyncio.sleep(0)
        note("never")
    os.wait()
    note("forked")

@app.job("grows", tries=1)
def grows() -> None:
    grown.append(bytearray(80 << 20))
    note("grown", os.getpid())

@app.job("hogs", tries=1)
def hogs() -> None:
    grown.append(bytearray(os.urandom(1000) * 400_000))
    note("hogs")
    time.sleep(60)

grown = []

@app.job("blocking", tries=1)
async def blocking() -> None:
    quick.dispatch(5)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHARED)


def concurrent(shop: Project, concurrency: int, *arguments: str, workers: int = 1) -> Procs:
    return ready(shop, "--concurrency", str(concurrency), *arguments, workers=workers)


def cancel(redis: Client, part: bytes) -> None:
    """As handle.cancel() does it for a running job with this text in its payload."""
    (held,) = [text for text in redis.call("HVALS", "queues:default:owners") if part in text]
    mark = re.findall(rb'"rsv":"(\w+\.\d+\.\d+)\.\d+"', held)[-1]
    redis.call("HSET", "qd:cancel", mark, redis.call("TIME")[0])


def attempts(redis: Client) -> set[tuple[int, int]]:
    """Attempts and crashes of all waiting jobs."""
    texts = [*redis.call("LRANGE", "queues:default", 0, -1), *redis.call("LRANGE", "queues:default:suspects", 0, -1)]
    return {(payload["attempts"], payload.get("crashes", 0)) for payload in map(json.loads, texts)}


# -- tasks and threads


def test_a_thousand_async_jobs_sleep_at_once(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "nap", count=1000, seconds=1.0)
    work = concurrent(shop, 1000)
    witness.wait("nap", count=1)
    began = time.monotonic()
    witness.wait("woke", count=1000)
    took = time.monotonic() - began
    tree = [*work.session()]
    pss = sum(process.memory_full_info().pss for process in tree) / 1e6
    print(f"1,000 x sleep(1): {took:.2f} s, {pss:.0f} MB PSS in {len(tree)} processes")
    work.stop()
    assert len({line.split()[2] for line in witness.starting("nap")}) == 1


def test_async_and_sync_jobs_run_at_once(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 20)
    for number in range(10):
        push(redis, "asleep", n=number)
        push(redis, "threaded", n=number)
    witness.wait("start", count=20)
    assert not witness.starting("end")
    witness.go()
    witness.wait("end", count=20)
    work.stop()


def test_each_job_has_its_own_context(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 50)
    for number in range(60):
        push(redis, "sees", n=number)
        push(redis, "tsees", n=number)
    lines = witness.wait("sees", count=120)
    work.stop()
    assert set(lines) == {"sees True True True", "sees True True"}


def test_a_checkpoint_of_an_async_job_is_there_in_its_next_attempt(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = concurrent(shop, 10)
    push(redis, "saves")
    assert witness.wait("saved", count=2) == ["saved None", "saved {'at': 7}"]
    work.stop()


@DEATHS
def test_sys_exit_ends_only_the_job_that_calls_it(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 10)
    push(redis, "threaded")
    witness.wait("start")
    push(redis, "exits")
    work.wait_line("job.failed .*job=exits")
    witness.go()
    witness.wait("end")
    work.stop()
    assert not work.matches("worker.died")


def test_a_blocking_call_on_the_loop_is_reported_once(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 10)
    push(redis, "blocking", count=3)
    witness.wait("quick", count=3)
    work.stop()
    assert len(work.matches(r"loop.blocking_call job=blocking at=\S+/jobs.py:\d+ .*adispatch")) == 1


def test_an_exclusive_job_runs_alone_in_the_main_thread(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 10)
    assert work.matches("jobs.exclusive jobs=alone hint=")
    push(redis, "nap", count=5, seconds=0.5)
    witness.wait("nap", count=5)
    push(redis, "alone", count=3)
    push(redis, "nap", count=5, seconds=0.1)
    witness.wait("after", count=3)
    lines = witness.lines
    witness.wait("woke", count=10)
    work.stop()
    assert work.matches("job.waits .*job=alone .* running=5")
    at = lines.index("alone True")
    assert lines[at + 1] == "after"
    assert lines[:at].count("woke 0") == sum(line.startswith("nap") for line in lines[:at])


@pytest.mark.parametrize("job", ["forks", "aforks"])
def test_a_copy_that_a_job_forks_runs_nothing_else(shop: Project, witness: Witness, redis: Client, job: str) -> None:
    work = concurrent(shop, 10)
    push(redis, "asleep", count=5)
    witness.wait("start", count=5)
    push(redis, job)
    witness.wait("forked")
    witness.go()
    witness.wait("end", count=5)
    work.stop()
    assert (len(witness.starting("copy")), len(witness.starting("end")), witness.starting("never")) == (1, 5, [])


def test_a_worker_over_its_memory_lets_its_jobs_finish_and_is_replaced(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = concurrent(shop, 10, "--memory", "40M")
    push(redis, "asleep")
    witness.wait("start")
    push(redis, "grows")
    (grown,) = witness.wait("grown")
    eventually(lambda: len(work.children("qd: worker")) == 2)
    push(redis, "quick")
    (quick,) = witness.wait("quick")
    assert quick.split()[2] != grown.split()[1]
    witness.go()
    witness.wait("end")
    eventually(lambda: len(work.children("qd: worker")) == 1)
    work.stop()


@DEATHS
def test_a_worker_over_memory_hard_is_killed_and_only_the_job_that_takes_so_much_fails(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = concurrent(shop, 10, "--memory-hard", "250M", "--max-crashes", "1")
    push(redis, "asleep", count=5)
    witness.wait("start", count=5)
    push(redis, "hogs")
    work.wait_line("jobs.requeued .*suspects=6 ")
    witness.go()
    assert set(witness.wait("end", count=5, seconds=60.0)) == {"end 0 1"}
    work.wait_line("job.failed .*job=hogs.*over --memory-hard", seconds=60.0)
    work.stop()


def test_workers_after_hup_run_as_many_jobs_as_the_new_configuration_says(shop: Project, witness: Witness) -> None:
    shop.config("[worker]\nworkers = 1\nconcurrency = 4")
    work = shop.work(QD_CONCURRENCY="")
    work.wait_line("master.ready")
    for round, count in enumerate((2, 3), 1):
        shop.config(f"[worker]\nworkers = 1\nconcurrency = {count}")
        start, before = len(work.lines), len(witness.lines)
        work.signal(signal.SIGHUP)
        work.wait_line("master.reloaded workers=1", start=start)
        shop.qd("dispatch", "nap", "seconds=0.3", "--count", "12")
        witness.wait("woke", count=12 * round)
        running = list(accumulate(1 if line.startswith("nap") else -1 for line in witness.lines[before:]))
        assert max(running) == count
    work.stop()


def test_the_status_shows_the_longest_job_and_counts_the_others(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 20)
    push(redis, "asleep", count=12)
    witness.wait("start", count=12)

    def worker() -> dict[str, object]:
        (master,) = json.loads(shop.quick("status", "--json").stdout)["masters"]
        assert len(master["workers"]) == 1  # not yet in the first report of the master
        return dict(master["workers"][0])

    assert eventually(lambda: worker() if worker()["running"] == 12 else None)["job"] == "asleep"
    assert "asleep and 11 more" in shop.quick("status").stdout
    witness.go()
    witness.wait("end", count=12)
    work.stop()


# -- timeouts


@pytest.mark.fault(
    "51",
    "a job that ignores its cancellation, or is a thread that hangs in C, among others",
    "its worker takes no more jobs and ends when the others have ended; it alone has timed out",
)
@DEATHS
def test_a_task_that_swallows_its_cancellation_is_killed_once_the_others_have_ended(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = concurrent(shop, 10)
    push(redis, "nap", seconds=3.0)
    push(redis, "stubborn")
    witness.wait("stubborn")
    work.wait_line("job.overdue .*job=stubborn")
    push(redis, "quick")
    witness.wait("quick")  # in the worker beside it
    work.wait_line("job.killed .*job=stubborn")
    assert witness.starting("woke")
    work.wait_line("job.failed .*job=stubborn .*JobTimeout")
    work.stop()


@DEATHS
def test_a_thread_in_python_code_ends_at_its_timeout(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 10)
    push(redis, "loops")
    work.wait_line("job.failed .*job=loops .*JobTimeout: ran longer than its timeout of 1s")
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    assert not work.matches("job.killed")


@pytest.mark.fault(
    "51",
    "a job that ignores its cancellation, or is a thread that hangs in C, among others",
    "its worker takes no more jobs and ends when the others have ended; it alone has timed out",
)
@DEATHS
def test_a_thread_that_keeps_the_interpreters_lock_is_killed_although_the_others_have_not_ended(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = concurrent(shop, 10)
    push(redis, "asleep", count=3)
    witness.wait("start", count=3)
    push(redis, "keeps_lock")
    work.wait_line("job.killed .*reason=timeout .*job=keeps_lock", seconds=15.0)  # others have 25 s if they can run
    witness.go()
    assert {end.split()[2] for end in witness.wait("end", count=3)} == {"1"}
    work.wait_line("job.failed .*job=keeps_lock")
    work.stop()


@pytest.mark.fault(
    "51",
    "a job that ignores its cancellation, or is a thread that hangs in C, among others",
    "its worker takes no more jobs and ends when the others have ended; it alone has timed out",
)
@DEATHS
def test_a_thread_in_a_blocking_call_ends_with_its_worker(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 10)
    push(redis, "in_c")
    work.wait_line("job.killed .*reason=timeout .*job=in_c")
    work.wait_line('jobs.py", line .* in in_c$')  # the stack of its thread
    work.wait_line("job.failed .*job=in_c .*JobTimeout")
    work.stop()


@DEATHS
def test_a_job_ends_after_the_threads_that_it_started(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 10)
    push(redis, "groups")
    work.wait_line("job.failed .*job=groups .*JobTimeout")
    work.stop()


@pytest.mark.fault(
    "50",
    "one of 100 running jobs blocks the event loop forever",
    "it is killed 0.5 s after its timeout at the latest; the other 99 run again with nothing spent",
)
@DEATHS
def test_a_job_that_blocks_the_loop_is_killed_and_the_others_go_back_unspent(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push(redis, "asleep", count=99)
    work = concurrent(shop, 100)
    witness.wait("start", count=99)
    push(redis, "blocks")
    witness.wait("blocks")
    work.wait_line("loop.blocked .*job=blocks")
    work.wait_line('jobs.py", line .* in blocks$')
    assert work.wait_line("job.killed .*job=blocks .*took=2\\.")
    witness.wait("start", count=198)
    witness.go()
    witness.wait("end", count=99)
    work.wait_line("job.failed .*job=blocks .*JobTimeout")
    work.stop()
    assert len(failed(redis)) == 1


# -- cancel and lost leases


@pytest.mark.parametrize(
    ("job", "raised"), [("asleep", "raised JobCancelled"), ("threaded", "raised JobCancelled JobCancelled")]
)
def test_one_of_several_jobs_is_cancelled(
    shop: Project, witness: Witness, redis: Client, job: str, raised: str
) -> None:
    work = concurrent(shop, 10)
    push(redis, "asleep", count=5, n=1)
    witness.wait("start 1", count=5)
    push(redis, job, n=2)
    witness.wait("start 2")
    cancel(redis, b'"n": 2')
    assert witness.wait("raised") == [raised]
    work.wait_line(f"job.cancelled .*job={job}")
    witness.go()
    witness.wait("end 1", count=5)
    work.stop()


def test_a_lost_lease_ends_the_job(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config("retry_after = 3")
    work = concurrent(shop, 10)
    push(redis, "asleep")
    witness.wait("start")
    redis.call("DEL", "queues:default:reserved")
    assert witness.wait("raised") == ["raised LeaseLost"]
    work.wait_line("job.lease_lost .*job=asleep")
    work.stop()


# -- deaths


@pytest.mark.fault(
    "52",
    "SIGSEGV in one of 50 threads, each time it runs",
    "all are suspects and run apart: that one fails, the other 49 are done",
)
@DEATHS
def test_a_crash_in_one_of_many_threads_fails_only_that_job(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 100)
    push(redis, "threaded", count=49)
    witness.wait("start", count=49)
    push(redis, "crashes")
    witness.wait("crashes")
    work.wait_line("jobs.requeued .*suspects=50 .*reason=crash")
    witness.go()
    work.wait_line("job.failed .*job=crashes .*died 3 times", seconds=60.0)
    witness.wait("end", count=49, seconds=60.0)
    work.stop()
    assert len(failed(redis)) == 1
    assert len(witness.starting("crashes")) <= 5  # beside all, beside some suspects, and three times alone


@DEATHS
def test_a_crash_on_the_loop_makes_only_that_job_a_suspect(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 100)
    push(redis, "asleep", count=20)
    witness.wait("start", count=20)
    push(redis, "crashes_on_loop")
    work.wait_line("jobs.requeued .*suspects=1 ")
    witness.go()
    witness.wait("end", count=20)
    work.wait_line("job.failed .*job=crashes_on_loop", seconds=60.0)
    work.stop()


def test_a_busy_worker_leaves_for_a_suspect(shop: Project, witness: Witness, redis: Client) -> None:
    """It is run by the next worker, while this one finishes its jobs."""
    shop.program = (
        sys.executable,
        "-c",
        "from qd.worker import concurrent; concurrent.LOOK_NS = 10**9\nfrom qd.cli.main import main; main()",
    )
    work = concurrent(shop, 10)
    push(redis, "asleep", count=5)
    witness.wait("start", count=5)
    redis.call("RPUSH", "queues:default:suspects", make("quick", b'{"n": 7}', created_at=int(time.time())))
    witness.wait("quick 7")
    assert not witness.starting("end")
    witness.go()
    witness.wait("end", count=5)
    work.stop()


@pytest.mark.fault(
    "48",
    "kill -9 of a worker that runs 500 jobs",
    "all wait again within a second (time), and are done with nothing spent",
)
@DEATHS
def test_nothing_is_counted_against_the_jobs_of_a_killed_worker(
    shop: Project, witness: Witness, redis: Client, figures: Figures
) -> None:
    work = concurrent(shop, 500)
    push(redis, "asleep", count=250)
    push(redis, "threaded", count=250)
    witness.wait("start", count=500, seconds=60.0)
    began = time.monotonic()
    work.child("qd: worker").kill()
    work.wait_line("jobs.requeued .*suspects=500")
    figures.add(back=[time.monotonic() - began], p99=1.0)
    witness.go()
    assert set(witness.wait("end", count=500, seconds=120.0)) == {"end 0 1"}
    work.stop()
    assert not failed(redis)


@pytest.mark.fault(
    "55",
    "Redis hangs for 30 s (10 s in make test) while a worker runs 200 jobs, which end meanwhile",
    "their acks wait and are sent; each ran once",
)
@DEATHS
def test_jobs_outlast_an_outage_of_the_server(
    project: MakeProject, tmp_path: Path, clean_redis: Client, figures: Figures
) -> None:
    seconds = 30.0 if figures.strict else 10.0
    with Server() as own:
        shop = project(jobs=SHARED, url=own.url)
        witness = Witness(shop)
        with own.client() as client:
            push(client, "asleep", count=100)
            push(client, "threaded", count=100)
            work = concurrent(shop, 200)
            witness.wait("start", count=200, seconds=60.0)
        worker, redis = work.child("qd: worker"), own.process
        assert redis is not None
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            witness.go()
            witness.wait("end", count=200, seconds=30.0)
            began = time.monotonic()
            eventually(lambda: time.monotonic() - began > seconds, seconds + 5.0)
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        with own.client() as client:
            eventually(lambda: client.call("ZCARD", "queues:default:reserved") == 0)
            push(client, "quick")
            witness.wait("quick")
            assert work.child("qd: worker").pid == worker.pid
            work.stop()
            assert not failed(client)
    assert len(witness.starting("start")) == 200


# -- stop


@pytest.mark.fault(
    "54",
    "TERM while a worker runs 200 jobs that do not end before the deadline",
    "each is interrupted and handed back, with nothing spent; exit code 0",
)
def test_running_jobs_are_handed_back_at_the_deadline(shop: Project, witness: Witness, redis: Client) -> None:
    work = concurrent(shop, 200, "--stop-timeout", "5")
    push(redis, "asleep", count=100)
    push(redis, "threaded", count=100)
    witness.wait("start", count=200, seconds=40.0)
    work.stop()
    assert work.matches("master.stopping .* running=200 ")
    assert len(witness.starting("raised")) == 200
    assert redis.call("LLEN", "queues:default") == 200
    assert attempts(redis) == {(0, 0)}
    redis.call("DEL", "queues:default", "queues:default:notify")
