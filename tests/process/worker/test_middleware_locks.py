"""WithoutOverlapping, ConcurrencyLimit, RateLimited: several real workers, killed ones, and a Redis that goes away."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress

import pytest

from tests.support.payloads import failed, producer, push
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

HELD = (
    JOBS
    + """
import signal

from qd.middleware import ConcurrencyLimit, RateLimited, WithoutOverlapping
from qd.store.locks import Rate

app.limit("stripe", 5, per=0.5)

def noted(start):
    def noting(self, store, owner, mark):
        answer = start(self, store, owner, mark)
        if not answer.wait:
            note("started", repr(answer.at))
        return answer
    return noting

Rate.start = noted(Rate.start)

def busy(n):
    note("in", n, time.monotonic_ns(), os.getpid())
    time.sleep(0.03)
    note("out", n, time.monotonic_ns())

@app.job("limited", middleware=[ConcurrencyLimit("crm", 2, release_after=0.02)], tries=1)
def limited(n: int) -> None:
    busy(n)

@app.job("other", middleware=[ConcurrencyLimit("crm", 2, release_after=0.02)], tries=1)
def other(n: int) -> None:
    busy(n)

@app.job("report", middleware=[WithoutOverlapping("report:{report_id}", release_after=0.02)], tries=1)
def report(report_id: int, n: int = 0) -> None:
    note("report", report_id, n)
    busy(n)

@app.job("once", middleware=[WithoutOverlapping(drop=True)])
def once(n: int = 0) -> None:
    note("once", n)
    while not os.path.exists("go"):
        time.sleep(0.01)

@app.job("rated", middleware=[RateLimited("stripe")], tries=1)
def rated(n: int) -> None:
    note("rated", n)

@app.job("killed", middleware=[WithoutOverlapping(release_after=0.02)], tries=1)
def killed(n: int = 0) -> None:
    note("killed", n, os.getpid())
    while n == 1 and not os.path.exists("go"):
        time.sleep(0.01)

def only_a_kill_ends_this():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(60)

@app.job("stuck", middleware=[WithoutOverlapping()], timeout=1, tries=2, backoff=60)
def stuck(n: int) -> None:
    note("stuck", n)
    if n == 1:
        only_a_kill_ends_this()

@app.job("unending", middleware=[WithoutOverlapping()], timeout=0)
def unending(n: int) -> None:
    note("unending", n)
    if n == 1:
        only_a_kill_ends_this()

@app.job("expiring", middleware=[WithoutOverlapping()], timeout=0)
def expiring(n: int) -> None:
    note("expiring", n, os.getpid())
    while n == 1 and not os.path.exists("go"):
        time.sleep(0.01)

@app.job("forks", middleware=[WithoutOverlapping()])
def forks() -> None:
    pid = os.fork()
    if pid == 0:
        return  # a copy that comes back, through all middleware
    os.waitpid(pid, 0)
    note("forked")
    while not os.path.exists("go"):
        time.sleep(0.01)

@app.job("long", middleware=[WithoutOverlapping()], timeout=2, tries=1)
def long(seconds: float) -> None:
    note("long", current_job().attempt)
    time.sleep(seconds)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=HELD)


def at_once(lines: list[str]) -> int:
    """The most jobs that were inside at a time, by the lines "in N ..." and "out N ...". One that was killed is inside until
    it has come back and gone."""
    most, inside = 0, set[str]()
    moments = sorted((int(at), kind == "in", n) for kind, n, at, *_ in map(str.split, lines))
    for _, came, n in moments:
        (inside.add if came else inside.discard)(n)
        most = max(most, len(inside))
    return most


def test_only_so_many_run_at_a_time_whatever_their_names(shop: Project, redis: Client, witness: Witness):
    for n in range(8):
        push(redis, "limited", n=n)
        push(redis, "other", n=100 + n)
    work = ready(shop, workers=6)
    witness.wait("out", 16, seconds=30)
    work.wait_line("job.done", 30, count=16)
    work.stop()
    assert at_once([line for line in witness.lines if line.startswith(("in ", "out "))]) == 2
    assert work.matches(r'job.released .*reason="2 jobs of crm are already running"')
    assert not work.matches("job.failed")


@pytest.mark.leaves("queues:default:deaths")
def test_no_more_than_that_also_while_workers_are_killed(shop: Project, redis: Client, witness: Witness):
    for n in range(60):
        push(redis, "limited", n=n)
    work = ready(shop, "--max-crashes", "9", workers=4)  # it may be one job that is hit each time
    for kill in range(8):
        pid = witness.wait("in ", 3 + 5 * kill, seconds=30)[-1].split()[3]
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: len({line.split()[1] for line in witness.starting("out")}) == 60, 60, what="all of them done")
    places = [
        f"queues:default{kind}" for kind in ("", ":delayed", ":reserved")
    ]  # one may run again: killed behind its end
    eventually(lambda: not redis.call("EXISTS", *places), 60, what="an empty queue")
    work.stop()
    assert at_once([line for line in witness.lines if line.startswith(("in ", "out "))]) == 2
    assert not work.matches("job.failed")
    assert work.matches("worker.died")


def test_jobs_of_one_key_do_not_overlap_and_others_do(shop: Project, redis: Client, witness: Witness):
    for n in range(6):
        push(redis, "report", report_id=n % 2, n=n)
    work = ready(shop, workers=6)
    witness.wait("out", 6, seconds=30)
    work.stop()
    own = {n: int(line.split()[1]) for line in witness.starting("report") for n in [line.split()[2]]}
    for report_id in (0, 1):
        lines = [
            line for line in witness.lines if line.split()[0] in ("in", "out") and own[line.split()[1]] == report_id
        ]
        assert at_once(lines) == 1
    assert not work.matches("job.failed")


def test_one_that_finds_another_running_can_be_dropped(shop: Project, redis: Client, witness: Witness):
    shop.allowed.add("go")
    work = ready(shop, workers=2)
    push(redis, "once", n=1)
    witness.wait("once")
    push(redis, "once", n=2)
    work.wait_line("dropped: another job of once is running")
    (shop.root / "go").touch()
    work.wait_line("job.done", 30, count=2)
    work.stop()
    assert witness.starting("once") == ["once 1"]


@pytest.mark.leaves("queues:default:deaths")
def test_a_killed_job_has_its_own_lock_again(shop: Project, redis: Client, witness: Witness):
    """The lock of the killed job remains for over a minute; until then only that job may acquire it."""
    shop.allowed.add("go")
    work = ready(shop, workers=2)
    push(redis, "killed", n=1)
    pid = int(witness.wait("killed 1")[0].split()[2])
    push(redis, "killed", n=2)
    work.wait_line("another job of killed is running")
    os.kill(pid, signal.SIGKILL)
    witness.wait("killed 1", 2, BROUGHT)
    (shop.root / "go").touch()
    witness.wait("killed 2")
    work.wait_line("job.done", 30, count=2)
    work.stop()
    assert [line.rsplit(" ", 1)[0] for line in witness.lines] == ["killed 1", "killed 1", "killed 2"]


def test_a_copy_of_the_worker_that_comes_back_from_the_job_frees_nothing(
    shop: Project, redis: Client, witness: Witness
):
    shop.allowed.add("go")
    work = ready(shop)
    push(redis, "forks")
    witness.wait("forked")
    assert redis.call("EXISTS", "qd:lock:forks") == 1
    (shop.root / "go").touch()
    work.wait_line("job.done")
    work.stop()


@pytest.mark.leaves("queues:default:failed*")
def test_a_job_that_ran_out_of_time_gives_its_lock_back(shop: Project, redis: Client, witness: Witness):
    work = ready(shop)
    push(redis, "long", seconds=60)
    work.wait_line("job.failed")
    push(redis, "long", seconds=0)
    work.wait_line("job.done")
    work.stop()
    assert not work.matches("another job of long is running")


# -- jobs that did not free their locks themselves


@pytest.mark.leaves("queues:default:deaths", "queues:default:delayed")
def test_a_job_killed_at_its_timeout_frees_its_lock_while_it_waits_for_its_backoff(
    shop: Project, redis: Client, witness: Witness
):
    work = ready(shop)
    push(redis, "stuck", n=1)
    work.wait_line(r"job.requeued .*reason=timeout", 30)
    assert redis.call("KEYS", "qd:lock:*") == redis.call("KEYS", "qd:places:*") == []
    push(redis, "stuck", n=2)
    witness.wait("stuck 2")
    work.wait_line("job.done")
    work.stop()
    assert not work.matches("another job of stuck is running")


@pytest.mark.leaves("queues:default:deaths")
def test_a_cancelled_job_that_must_be_killed_frees_its_lock(shop: Project, redis: Client, witness: Witness):
    with producer(shop.url) as app:
        id = app.queue("default").push("unending", {"n": 1}).id
        work = ready(shop)
        witness.wait("unending 1")
        assert app.handle(id).cancel()
        work.wait_line("job.cancelled", 30)
    push(redis, "unending", n=2)
    witness.wait("unending 2")
    work.wait_line("job.done")
    work.stop()
    assert work.matches(r"job.requeued .*reason=cancelled")
    assert not work.matches("another job of unending is running")


def crashed(shop: Project, redis: Client, witness: Witness) -> tuple[Procs, bytes]:
    """`qd work` whose job `expiring` has crashed and waits in a paused queue, and the payload of that job."""
    work = ready(shop)
    push(redis, "expiring", n=1)
    pid = int(witness.wait("expiring 1")[0].split()[2])
    assert shop.quick("pause", "default").exit_code == 0
    os.kill(pid, signal.SIGKILL)
    work.wait_line(r"job.requeued .*reason=crash", BROUGHT)
    assert redis.call("EXISTS", "qd:lock:expiring") == 1
    return work, redis.call("LINDEX", "queues:default", 0)


def runs_at_once(shop: Project, redis: Client, witness: Witness, work: Procs) -> None:
    assert shop.quick("resume", "default").exit_code == 0
    push(redis, "expiring", n=2)
    witness.wait("expiring 2")
    work.wait_line("job.done")
    work.stop()
    assert not work.matches("another job of expiring is running")


@pytest.mark.leaves("queues:default:deaths", "queues:default:failed*")
def test_a_crashed_job_that_fails_before_its_middleware_frees_its_lock(shop: Project, redis: Client, witness: Witness):
    work, waits = crashed(shop, redis, witness)
    redis.call("LSET", "queues:default", 0, waits.replace(b'"attempts":', b'"retryUntil":1,"attempts":', 1))
    runs_at_once(shop, redis, witness, work)
    assert work.matches("job.failed")


@pytest.mark.leaves("queues:default:deaths")
def test_a_crashed_job_that_is_cancelled_while_it_waits_frees_its_lock(shop: Project, redis: Client, witness: Witness):
    work, waits = crashed(shop, redis, witness)
    with producer(shop.url) as app:
        assert app.handle(str(json.loads(waits)["id"])).cancel()
    assert redis.call("KEYS", "qd:lock:*") == redis.call("KEYS", "qd:places:*") == []
    runs_at_once(shop, redis, witness, work)


def test_a_job_that_is_handed_back_gives_its_lock_back(shop: Project, redis: Client, witness: Witness):
    shop.allowed.add("go")
    work = ready(shop, "--stop-timeout", "4")  # qd warns it 0.8 s before
    push(redis, "killed", n=1)
    witness.wait("killed")
    work.stop()
    assert redis.call("EXISTS", "qd:lock:killed") == 0
    (shop.root / "go").touch()
    shop.work_off()
    assert len(witness.starting("killed 1")) == 2


@pytest.mark.leaves("qd:rate:*")
def test_never_over_the_rate_in_any_window_of_the_servers_clock(shop: Project, redis: Client, witness: Witness):
    for n in range(30):
        push(redis, "rated", n=n)
    work = ready(shop, workers=4)
    witness.wait("rated", 30, seconds=30)
    work.wait_line("job.done", 30, count=30)
    work.stop()
    started = sorted(float(line.split()[1]) for line in witness.starting("started"))
    assert len(started) == 30
    assert min(later - first for first, later in zip(started, started[5:], strict=False)) >= 0.5 - 1e-6
    assert work.matches(r'job.released .*attempt=1 .*reason="over 5 per 0.5 s of stripe"')
    assert sorted(int(line.split()[1]) for line in witness.starting("rated")) == list(range(30))


@pytest.mark.leaves("queues:default:failed*", "qd:*")
def test_while_redis_is_away_a_job_is_put_back_and_never_failed_for_it(project: MakeProject):
    with Server(*KEEPS) as own:
        shop = project(
            jobs=JOBS
            + """
from qd.middleware import ConcurrencyLimit, RateLimited, WithoutOverlapping

def after_a_while(job, call_next):
    note("asks", job.attempt)
    while not os.path.exists("go"):
        time.sleep(0.01)
    try:
        return call_next()
    except BaseException:
        note("put back")
        raise

@app.job("x", middleware=[after_a_while, RateLimited("x", 100, per=1), WithoutOverlapping()], tries=1)
def x() -> None:
    note("ran", current_job().attempt)
""",
            url=own.url,
        )
        shop.allowed.add("go")
        redis, witness = own.client(), Witness(shop)
        work = ready(shop)
        push(redis, "x")
        witness.wait("asks")
        redis.close()
        own.kill()
        (shop.root / "go").touch()
        witness.wait("put back")
        own.start()
        witness.wait("ran", seconds=30)
        work.wait_line("job.done")
        work.stop()
        assert work.matches(r'job.released .*reason="could not check its limits: .*Redis')
        assert witness.starting("ran") == ["ran 1"]
        redis = own.client()
        assert failed(redis) == []
        redis.close()


def test_a_lock_that_could_not_be_freed_while_redis_was_away_is_freed_with_the_answer(project: MakeProject):
    with Server(*KEEPS) as own:
        shop = project(
            jobs=JOBS
            + """
from qd.middleware import WithoutOverlapping

@app.job("x", middleware=[WithoutOverlapping()], timeout=0)
def x() -> None:
    note("ran")
    held()
""",
            url=own.url,
        )
        redis, witness = own.client(), Witness(shop)
        work = ready(shop)
        push(redis, "x")
        witness.wait("ran")
        redis.close()
        own.kill()
        witness.go()
        work.wait_line("the slot of this job is freed when the job ends")
        own.start()
        redis = own.client()
        eventually(lambda: redis.text("KEYS", "queues:*") == ["queues:default:owners"], 30, what="the answer")
        assert [field.endswith(":turn") for field in redis.text("HKEYS", "queues:default:owners")] == [True]
        assert redis.call("KEYS", "qd:lock:*") == redis.call("KEYS", "qd:places:*") == []
        redis.close()
        work.stop()
