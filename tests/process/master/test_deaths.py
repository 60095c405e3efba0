"""However a worker, a keeper or a master dies: no job is lost or doubled, the death is logged, and the others go on."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.support.payloads import failed, push, push_raw
from tests.support.processes import titled, waiting
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import DEATHS, FAILED, Client
from tests.support.reliability import Figures
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


DEADLY = (
    JOBS
    + """
import ctypes, multiprocessing, resource, signal, subprocess

def burn():
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    while True:
        pass

def overflow():
    sys.setrecursionlimit(10**6)
    list(map(lambda _: overflow(), [0]))

WAYS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit 0": lambda: os._exit(0),
    "exit 1": lambda: os._exit(1),
    "sys.exit": sys.exit,
    "sys.exit 3": lambda: sys.exit(3),
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "overflow": overflow,
    "cpu": burn,
    "term": lambda: (signal.signal(signal.SIGTERM, signal.SIG_DFL), os.kill(os.getpid(), signal.SIGTERM)),
}

@app.job("die")
def die(how: str) -> None:
    note("die", current_job().attempt)
    WAYS[how]()

@app.job("hold")
def hold(seconds: float) -> None:
    note("start", "hold", os.getpid())
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # in C, and the interpreter's lock is kept
    note("end", "hold", os.getpid())

@app.job("child")
def child() -> None:
    note("start", "child", os.getpid())
    subprocess.run(["sleep", "300"])

@app.job("once")
def once() -> None:
    note("start", "once", os.getpid())
    while not Path("second").exists():
        child() if os.environ.get("HOW") == "child" else hold(300) if os.environ.get("HOW") == "hold" else time.sleep(0.02)
    note("end", "once", os.getpid())
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=DEADLY)


# -- one worker


def test_kill_9_in_a_job_costs_a_crash_and_no_attempt_and_the_job_runs_again(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = ready(shop)
    shop.allowed.add("second")
    push(redis, "once")
    pid = int(witness.wait("start")[0].split()[2])
    os.kill(pid, signal.SIGKILL)
    witness.wait("start", 2, BROUGHT)
    (member,) = redis.text("ZRANGE", "queues:default:reserved", "0", "-1")
    assert '"attempts":1,"crashes":1,' in member
    work.wait_line(rf"worker.died .*pid={pid} how=\"signal 9 \(SIGKILL\)\" .*job=once")
    work.wait_line("job.requeued .*job=once.*reason=crash")
    (shop.root / "second").touch()
    witness.wait("end")
    work.wait_line("job.done .*job=once.*attempt=1 crashes=1")
    work.stop()
    redis.call("DEL", "queues:default:deaths")


@FAILED
def test_two_workers_of_one_slot_never_make_the_same_mark(shop: Project, witness: Witness, redis: Client) -> None:
    """Otherwise the note under a mark (how its worker died) would be reported for another job."""
    work = shop.work("-w", "1", "--max-crashes", "8")
    push(redis, "die", how="kill")
    work.wait_line("job.failed")
    assert redis.call("HLEN", "queues:default:deaths") == 7  # the eighth is in the record of the failed job
    work.stop()


def test_kill_9_of_an_idle_worker_blames_no_job(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "quick")
    witness.wait("quick")
    (worker,) = waiting(work)
    worker.kill()
    line = work.wait_line("worker.died .*signal 9").string
    assert "job=" not in line
    eventually(lambda: worker.pid not in [p.pid for p in waiting(work)], what="another worker")
    push(redis, "quick")
    witness.wait("quick", 2)
    work.stop()


POISON = {
    "kill": "signal 9 (SIGKILL)",
    "exit 0": "left with exit code 0 in the middle of a job (os._exit or sys.exit)",
    "exit 1": "left with exit code 1 in the middle of a job (os._exit or sys.exit)",
    "sys.exit": "left with exit code 0 in the middle of a job (os._exit or sys.exit)",
    "sys.exit 3": "left with exit code 3 in the middle of a job (os._exit or sys.exit)",
    "segv": "signal 11 (SIGSEGV)",
    "abort": "signal 6 (SIGABRT)",
    "overflow": "signal 11 (SIGSEGV)",
    "cpu": "signal 24 (SIGXCPU)",
    "term": "signal 15 (SIGTERM)",
}


@FAILED
@pytest.mark.fault(
    "11",
    "a job that kills its worker each time: SIGSEGV, abort, exit, sys.exit, stack overflow, CPU limit, signals",
    "started three times alone, then failed with how its workers died; the 60 jobs behind it are done "
    "(times: until those are done)",
)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=pytest.mark.modes("1", "prefetch", why="in a thread that ends the job, not its worker"))
        if how in ("sys.exit", "sys.exit 3", "term")
        else how
        for how in POISON
    ],
)
def test_poison_kills_max_crashes_workers_and_is_failed_with_how_they_died(
    shop: Project, witness: Witness, redis: Client, figures: Figures, how: str, mode: str
) -> None:
    work = ready(shop)
    began = time.monotonic()
    push(redis, "die", how=how)
    push(redis, "quick", count=60)
    witness.wait("quick", 60, seconds=40)
    figures.add(back=[time.monotonic() - began], p99=6.0 if how == "cpu" else 3.0)
    work.wait_line("job.failed .*job=die.*max_crashes", 40)
    # A death beside others costs nothing. If others still ran then, some of them run beside it once more.
    beside = len(work.matches("jobs.requeued .*suspects="))
    assert beside in ((1, 2) if mode == "concurrency" else (0,))
    deaths = 3 + beside
    assert witness.starting("die") == ["die 1"] * deaths
    work.wait_line("worker.died", count=deaths)  # the master logs it, another process the line before
    died = [match.string for match in work.matches("worker.died .*job=die")][-3:]
    assert [POISON[how] in line.replace('\\"', '"') for line in died] == [True] * 3
    ((record, raw),) = failed(redis)
    assert record["crashes"] == 3
    assert POISON[how] in record["reason"]
    if how in ("segv", "abort", "overflow"):
        assert re.search(r'File ".*jobs.py", line \d+ in (die|overflow)', record["death"]["stack"])
        assert len(work.matches(r"^    .*jobs.py., line \d+ in (die|overflow)")) >= 3
    assert len(witness.starting("quick")) == 60 or mode == "concurrency"  # those beside it may have run again
    assert b'"attempts":1,"crashes":3,' in raw
    waiting(work)
    work.stop()


HOOKED = (
    DEADLY
    + """
from qd import Job, events

@app.job("mined")
class Mined(Job[None]):
    how: str

    def handle(self) -> None:
        note("mined")
        os._exit(1)

    def failed(self, error: BaseException) -> None:
        note("failed", os.getpid(), type(error).__name__)
        if self.how == "failed()":
            os.kill(os.getpid(), signal.SIGKILL)

@app.on(events.JobFailed)
def listen(event: events.JobFailed) -> None:
    note("listener", os.getpid(), type(event.error).__name__)
    if Path("mine").exists():
        os._exit(1)
"""
)


@FAILED
def test_failed_and_listeners_of_a_poison_job_run_in_a_worker(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=HOOKED)
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "mined", how="")
    work.wait_line("job.failed .*job=mined")
    (worker,) = waiting(work)
    assert witness.lines == [
        *["mined"] * 3,
        f"failed {worker.pid} AttemptsExceeded",
        f"listener {worker.pid} AttemptsExceeded",
    ]
    work.stop()


@FAILED
@pytest.mark.parametrize("mine", ["failed()", "listener"])
def test_hooks_that_kill_the_judging_worker_too_are_left_out_by_the_next(
    project: MakeProject, redis: Client, mine: str
) -> None:
    shop = project(jobs=HOOKED)
    witness = Witness(shop)
    if mine == "listener":
        (shop.root / "mine").touch()
        shop.allowed.add("mine")
    work = ready(shop)
    push(redis, "mined", how=mine)
    push(redis, "quick")
    work.wait_line("job.failed .*job=mined")
    witness.wait("quick")
    assert len(witness.starting("mined")) == 3
    assert len(witness.starting("failed")) == 1
    ((record, _),) = failed(redis)
    assert record["crashes"] == 3
    assert "its worker died in failed() or in a listener" in record["reason"]
    work.stop()


@DEATHS
def test_what_a_killed_job_has_started_goes_with_it(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, HOW="child")
    (shop.root / "second").unlink(missing_ok=True)
    shop.allowed.add("second")
    push(redis, "once")
    pid = int(witness.wait("start once")[0].split()[2])
    (sleep,) = eventually(lambda: psutil.Process(pid).children(), what="the job's subprocess")
    (shop.root / "second").touch()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: over(sleep), BROUGHT, what="no subprocess left")
    witness.wait("end once")
    work.stop()


def over(process: psutil.Process) -> bool:
    """Gone, or a zombie that PID 1 has not reaped yet."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


# -- keeper, template, master


def test_the_keeper_is_replaced_at_once_and_leases_are_renewed(project: MakeProject, redis: Client) -> None:
    shop = project(
        jobs=DEADLY, config='retry_after = "4s"\n'
    )  # more than a start of a keeper takes on a loaded machine
    witness = Witness(shop)
    work = ready(shop)
    other = ready(shop, "--sleep", "0.2")
    push(redis, "slow", seconds=8)
    witness.wait("start")
    for _ in range(2):
        for one in (work, other):
            keeper = one.child("qd: keeper")
            keeper.kill()
            eventually(lambda: [k for k in one.children("qd: keeper") if k.pid != keeper.pid], 20, what="a new keeper")  # noqa: B023
    witness.wait("end")
    assert len(witness.starting("start")) == len(witness.starting("end")) == 1
    assert work.matches("keeper.died .*signal 9")
    assert not work.matches("lease") + other.matches("lease")
    other.stop()
    work.stop()


@DEATHS
def test_a_new_keeper_settles_what_the_old_one_could_not(shop: Project, witness: Witness, redis: Client) -> None:
    shop.allowed.add("second")
    work = ready(shop)
    push(redis, "once")
    pid = int(witness.wait("start")[0].split()[2])
    keeper = work.child("qd: keeper")
    keeper.suspend()
    os.kill(pid, signal.SIGKILL)
    work.wait_line("worker.died")
    keeper.kill()
    work.wait_line("job.requeued .*job=once", 20)
    (shop.root / "second").touch()
    witness.wait("end")
    work.stop()


def test_a_stopped_keeper_is_seen_killed_and_replaced(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=DEADLY, config='retry_after = "9s"\n')
    witness = Witness(shop)
    work = ready(shop)
    keeper = work.child("qd: keeper")
    keeper.suspend()
    work.wait_line("keeper.silent", 20)  # after max(3 s, a third of the lease)
    eventually(lambda: [k for k in work.children("qd: keeper") if k.pid != keeper.pid], 20, what="a new keeper")
    push(redis, "quick")
    witness.wait("quick")
    work.stop()


def test_a_killed_template_is_replaced_and_workers_continue(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "slow", seconds=2)
    witness.wait("start")
    template = work.child("qd: template")
    template.kill()
    work.wait_line("template.died .*signal 9")
    eventually(lambda: [t for t in work.children("qd: template") if t.pid != template.pid], what="a new template")
    witness.wait("end")
    push(redis, "quick")
    witness.wait("quick")
    assert len(witness.starting("start")) == 1
    work.stop()


@DEATHS
@pytest.mark.parametrize("everything", [False, True], ids=["the master", "everything"])
@pytest.mark.parametrize("how", ["sleep", "hold", "child"])
def test_a_killed_master_leaves_no_worker_and_the_next_gives_back_its_jobs(
    shop: Project, witness: Witness, redis: Client, how: str, everything: bool
) -> None:
    shop.allowed.add("second")
    work = ready(shop, workers=2, HOW=how)
    push(redis, "once")
    pid = int(witness.wait("start once")[0].split()[2])
    eventually(lambda: how != "child" or psutil.Process(pid).children(), what="the job's subprocess")
    if everything:
        for process in work.session():
            if "qd: " in titled(process) or process.pid == work.pid:
                with suppress(psutil.NoSuchProcess):  # its master's end was its own
                    process.kill()
    work.kill()
    eventually(lambda: not [p for p in work.session() if titled(p) != "sleep 300"], BROUGHT, what="no orphan")
    (shop.root / "second").touch()
    again = shop.work("-w", "2")
    again.wait_line("job.requeued .*job=once.*its master died", 20)
    witness.wait("end once", seconds=20)
    eventually(lambda: not work.session(), what="no subprocess of the dead master's jobs")
    assert len(witness.starting("start once")) == 2
    again.wait_line("job.done .*job=once.*attempt=1 crashes=1")
    again.stop()


# -- long jobs, and jobs that fork


def test_jobs_much_longer_than_their_lease_run_once_next_to_another_qd_work(
    project: MakeProject, redis: Client
) -> None:
    shop = project(jobs=DEADLY, config='retry_after = "3500ms"\n')
    witness = Witness(shop)
    work, other = ready(shop), ready(shop)
    push(redis, "slow", seconds=8)
    push(redis, "hold", seconds=8)
    witness.wait("end", 2, seconds=20)
    assert len(witness.starting("start")) == 2
    assert not work.matches("lease") + other.matches("lease")
    work.stop()
    other.stop()


FORKS = (
    DEADLY
    + """
from qd import events

@app.on(events.JobProcessed)
def listen(event: events.JobProcessed) -> None:
    note("processed", event.job.name, os.getpid())

def forked(body):
    pid = os.fork()
    if pid == 0:
        return body()
    _, status = os.waitpid(pid, 0)
    note("parent", os.getpid(), status)

def fail():
    raise ValueError("the copy fails")

COPIES = {
    "returns": lambda: None,
    "raises": fail,
    "leaves": sys.exit,
    "leaves 3": lambda: sys.exit(3),
    "_exits": lambda: os._exit(0),
}

@app.job("fork")
def fork(how: str) -> None:
    forked(COPIES[how])

@app.job("fork in async")
async def fork_in_async(how: str) -> None:
    forked(COPIES[how])

@app.job("pool")
def pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert workers.map(abs, range(-20, 0)) == list(range(20, 0, -1))
    note("parent", os.getpid())

@app.job("subprocess")
def sub() -> None:
    assert subprocess.run(["sh", "-c", "echo hello"], capture_output=True, check=True).stdout == b"hello\\n"
    note("parent", os.getpid())

@app.job("fork and term")
def fork_and_term() -> None:
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        os.kill(pid, signal.SIGTERM)  # most come before the copy has run a line
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM
    note("parent", os.getpid())

@app.job("fork and hang", timeout=1)
def fork_and_hang() -> None:
    forked(sys.exit)
    sum(range(10**12))
"""
)


@pytest.mark.fault(
    "11 forks",
    "a job that forks: a multiprocessing pool, a child ended by a signal, a bare fork that comes back from the job",
    "the job is done once, by its own worker, which continues",
)
def test_a_copy_of_the_worker_that_comes_back_from_the_job_harms_nothing(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=FORKS)
    witness = Witness(shop)
    work = ready(shop)
    (worker,) = waiting(work)
    for kind in ("fork", "fork in async"):
        for how in ("returns", "raises", "leaves", "leaves 3", "_exits"):
            push(redis, kind, how=how)
    push(redis, "pool")
    push(redis, "subprocess")
    push(redis, "fork and term")
    push(redis, "quick")
    (quick,) = witness.wait("quick", seconds=20)
    assert quick.split()[2] == str(worker.pid), "the worker was replaced"
    assert len(witness.wait(f"parent {worker.pid}", 13)) == 13
    assert len(witness.starting("parent")) == 13
    witness.wait("processed", 14)
    assert {line.rsplit(" ", 1)[1] for line in witness.starting("processed")} == {str(worker.pid)}
    assert len(witness.starting("processed")) == 14
    work.wait_line("job.done", count=14)
    work.stop()


@FAILED
def test_a_copy_that_came_back_leaves_the_timeout_of_the_original_alone(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=FORKS)
    Witness(shop)
    work = ready(shop)
    push(redis, "fork and hang")
    work.wait_line("job.killed .*reason=timeout.*fork and hang", 20)
    work.wait_line("job.failed .*fork and hang")
    work.stop()


# -- notes of deaths that another program has written


NOTE = '{"death":{"verdict":"crash","more":'
DEEP = "[" * 700 + "]" * 700  # can be read, and not written again some frames deeper


@FAILED
@pytest.mark.parametrize(
    "note",
    ["[" * 100_000, NOTE + "[" * 100_000, NOTE + DEEP + "}}"],
    ids=["brackets", "brackets inside", "as deep as can be read"],
)
def test_a_note_that_is_nested_too_deep_ends_no_worker(project: MakeProject, redis: Client, note: str) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    payload = b'{"job":"quick","data":{"n":1},"id":"i1","attempts":1,"crashes":9,"rsv":"Tok3nTok3n.1.5.-"}'
    redis.call("HSET", "queues:default:deaths", "Tok3nTok3n.1.5", note)
    push_raw(redis, payload)
    push(redis, "quick", n=2)
    work = shop.work_off()
    assert [line.split()[1] for line in witness.starting("quick")] == ["2"]
    ((record, _),) = failed(redis)
    assert (record["crashes"], "more" in record.get("death", {})) == (9, False)
    assert not redis.call("EXISTS", "queues:default:deaths"), "it was read"
    assert not work.matches(r"worker\.died ")
