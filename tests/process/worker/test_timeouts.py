"""Jobs that do not end: each is ended on time with its stack in the log, and other jobs do not notice."""

from __future__ import annotations

import time
from itertools import pairwise

import psutil
import pytest

from tests.support.payloads import failed, push
from tests.support.processes import QD, titled
from tests.support.project import GENTLE, MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.reliability import Figures
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
STUCK_ROW = pytest.mark.fault(
    "10",
    "a job that does not end: asleep, in a loop, in C, in a lock, on a FIFO, ignoring signals, stopped, with children",
    "it is gone 0.5 s after its timeout at the latest, with what it had started, except what a job that left by "
    "`JobTimeout` had put into another session; the log and the failed job "
    "show where it hung; other jobs are unaffected (times: from the timeout to its end)",
)

STUCK = (
    JOBS
    + """
import asyncio, ctypes, re, signal, subprocess, threading
from qd import Backoff, JobInterrupted, JobTimeout, events

def asleep():
    time.sleep(60)

def busy():
    while True:
        pass

def regex():
    re.match(r"(a+)+$", "a" * 60 + "b")

def fifo():
    os.mkfifo("fifo")
    open("fifo").read()

def child():
    subprocess.run(["sleep", "300"])

def shell():
    os.system("sleep 300; true")

def in_c():
    sum(range(10**12))

def mutex():
    c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # PyDLL: the interpreter's lock is kept
    c.pthread_mutex_lock(lock)
    c.pthread_mutex_lock(lock)

def lock():
    kept = threading.Lock()
    thread = threading.Thread(target=kept.acquire)
    thread.start()
    thread.join()
    kept.acquire()  # no thread is left to release it

def ignored():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(60)

def replaced():
    signal.signal(signal.SIGALRM, lambda *_: note("their own handler"))
    signal.alarm(1)
    while True:
        time.sleep(60)

def disarmed():
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(60)

def masked():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(60)

def swallowed():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

async def awaited():
    await asyncio.sleep(60)

async def awaited_busy():
    while True:
        pass

async def awaited_swallowed():
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

KINDS = {body.__name__: body for body in (
    asleep, busy, regex, fifo, child, lock, shell, in_c, mutex, ignored, replaced, disarmed, masked, swallowed, stopped)}
ASYNC = {body.__name__: body for body in (awaited, awaited_busy, awaited_swallowed)}

@app.job("stuck", timeout=1)
def stuck(how: str) -> None:
    note("start", how, os.getpid(), time.monotonic())
    try:
        KINDS[how]()
    finally:
        note("finally", type(sys.exc_info()[1]).__name__)

@app.job("astuck", timeout=1)
async def astuck(how: str) -> None:
    note("start", how, os.getpid(), time.monotonic())
    try:
        await ASYNC[how]()
    finally:
        note("finally", type(sys.exc_info()[1]).__name__)

@app.job("again", timeout=1, tries=2, backoff=[1])
def again(how: str) -> None:
    note("again", how, current_job().attempt)
    KINDS[how]()

@app.job("spread", timeout=0.5, tries=4, backoff=Backoff(0.3, factor=1, jitter=1))
def spread(how: str) -> None:
    note("spread", current_job().attempt, time.monotonic())
    KINDS[how]()

@app.job("final", timeout=1, tries=5, fail_on_timeout=True)
def final(how: str) -> None:
    note("final", how)
    KINDS[how]()

@app.job("strict", timeout=1, tries=5, max_exceptions=1)
def strict(how: str) -> None:
    note("strict", how)
    KINDS[how]()
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=STUCK)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Jobs that see the timeout themselves; and jobs that have to be killed, with the function in the logged stack.
SOFT = ["asleep", "busy", "regex", "fifo", "child", "lock", "awaited"]
HARD = {
    "shell": "shell",
    "in_c": "in_c",
    "mutex": "mutex",
    "ignored": "ignored",
    "replaced": "replaced",
    "disarmed": "disarmed",
    "masked": None,
    "swallowed": "swallowed",
    "awaited_busy": "awaited_busy",
    "awaited_swallowed": "select",
    "stopped": None,
}


@FAILED
@STUCK_ROW
@pytest.mark.modes("1", "prefetch", why="a job beside others gets no signal, and those go on: rows 50 and 51")
@pytest.mark.parametrize("how", SOFT)
def test_a_job_over_its_timeout_sees_it_and_its_worker_takes_no_other(
    shop: Project, witness: Witness, redis: Client, figures: Figures, how: str
) -> None:
    shop.allowed.add("fifo")
    shop.program = GENTLE
    work = ready(shop, "--log-level", "debug")
    push(redis, "astuck" if how == "awaited" else "stuck", how=how)
    push(redis, "quick")
    _, _, pid, began = witness.wait("start")[0].split()
    eventually(lambda: gone(int(pid)), what="no stuck worker")
    took = time.monotonic() - float(began)
    assert took >= 1, "ended too early"
    figures.add(back=[took - 1], p99=0.5)
    (seen,) = witness.wait("finally")
    assert seen == f"finally {'CancelledError' if how == 'awaited' else 'JobTimeout'}"
    work.wait_line("job.failed .*JobTimeout")
    work.wait_line(r"worker.left .*exit 15 \(raised\)")
    assert witness.wait("quick")[0].split()[2] != pid
    ((record, _),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("JobTimeout", 1)
    assert f"in {how}" in record["trace"]
    eventually(lambda: not [p for p in work.session() if "sleep" in titled(p)], what="no subprocess left")
    work.stop()


@FAILED
@STUCK_ROW
@pytest.mark.modes("1", "prefetch", why="a job beside others gets no signal, and those go on: rows 50 and 51")
@pytest.mark.parametrize("how", HARD)
def test_a_job_that_no_exception_reaches_is_killed_on_time_and_its_stack_is_logged(
    shop: Project, witness: Witness, redis: Client, figures: Figures, how: str
) -> None:
    work = ready(shop)
    push(redis, "astuck" if "awaited" in how else "stuck", how=how)
    push(redis, "quick")
    _, _, pid, began = witness.wait("start")[0].split()
    eventually(lambda: gone(int(pid)), BROUGHT, what="no stuck worker")  # timeout 1, grace 0.4
    figures.add(back=[time.monotonic() - float(began) - 1], p99=0.5)
    line = work.wait_line(r"job.killed slot=\d+ pid=(\d+) .*signal 9 .*reason=timeout .*job=a?stuck .*took=([\d.]+)")
    took = line[2]
    work.wait_line(rf"worker.replaced slot=\d+ pid=\d+ replaces={line[1]}$")
    assert float(took) >= 1.3
    message = "it ran longer than its timeout and was killed: its worker ended with signal 9"
    work.wait_line(f"job.failed .*job=a?stuck .*attempt=1 .*{message}")
    assert witness.wait("quick")[0].split()[2] != pid
    ((record, _),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("JobTimeout", 1)
    if HARD[how]:
        work.wait_line(f"^    .* in {HARD[how]}$")  # the stack of the stuck line
        assert f" in {HARD[how]}" in record["trace"]
        assert "/qd/worker/" not in record["trace"], "the trace has frames of qd, too"
    else:
        work.wait_line("job.killed .*stack=.none .it was stopped, or had blocked every signal")
    assert len(witness.starting("start")) == 1
    eventually(lambda: not [p for p in work.session() if "sleep" in titled(p)], what="no subprocess left")
    work.stop()


@FAILED
def test_a_master_that_was_suspended_meanwhile_logs_the_stack_too(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = ready(shop)
    push(redis, "stuck", how="mutex")
    began = float(witness.wait("start")[0].split()[3])
    master = psutil.Process(work.pid)
    master.suspend()
    eventually(lambda: time.monotonic() > began + 1.6, what="a job that is long over its time")
    master.resume()
    work.wait_line("job.failed .*job=stuck")
    work.wait_line("^    .* in mutex$")  # the master logs it, the keeper the line before
    work.stop()


@FAILED
@pytest.mark.parametrize("how", ["asleep", "in_c"])
def test_it_is_tried_again_after_its_backoff_and_failed_after_its_tries(
    shop: Project, witness: Witness, redis: Client, how: str
) -> None:
    shop.program = GENTLE if how == "asleep" else QD
    work = ready(shop)
    push(redis, "again", how=how)
    ended = "job.released" if how == "asleep" else "job.requeued .*reason=timeout"
    work.wait_line(rf"{ended}.* delay=1\.[01]|job.released .*delay=1\.[01]")
    work.wait_line("job.failed .*job=again")
    assert witness.lines == [f"again {how} 1", f"again {how} 2"]
    ((record, _),) = failed(redis)
    assert record["attempts"] in (2, 3)
    work.stop()


@FAILED
@pytest.mark.fault(
    "10a",
    "a job stuck in C that is killed for its timeout, four times",
    "it comes back after its backoff and jitter, never earlier, and fails when its tries are used up",
)
def test_a_killed_job_waits_for_its_backoff_and_a_jitter(
    shop: Project, witness: Witness, redis: Client, figures: Figures
) -> None:
    work = ready(shop)
    push(redis, "spread", how="in_c")
    work.wait_line("job.failed .*job=spread", 30)
    waits = [float(each[1]) for each in work.matches(r"job.requeued .*job=spread .*delay=([\d.]+)") if float(each[1])]
    assert len(waits) == 3, waits
    assert all(0.3 <= wait <= 0.6 for wait in waits), waits
    assert len(set(waits)) > 1, f"came back together: {waits}"
    starts = [float(line.split()[2]) for line in witness.starting("spread")]
    assert [line.split()[1] for line in witness.starting("spread")] == ["1", "2", "3", "4"]
    for wait, (before, after) in zip(waits, pairwise(starts), strict=True):
        assert after - before >= 0.5 + wait - 0.01
    figures.add()
    work.stop()


@FAILED
@pytest.mark.parametrize("name", ["final", "strict"])
@pytest.mark.parametrize("how", ["asleep", "in_c"])
def test_fail_on_timeout_and_max_exceptions_hold_for_killed_jobs_too(
    shop: Project, witness: Witness, redis: Client, how: str, name: str
) -> None:
    work = ready(shop)
    push(redis, name, how=how)
    work.wait_line(f"job.failed .*job={name}", 20)
    assert witness.lines == [f"{name} {how}"]
    work.stop()


@FAILED
@STUCK_ROW
@pytest.mark.modes("1", "prefetch", why="jobs of one worker share the interpreter's lock: row 51")
def test_neighbours_do_not_notice(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, workers=2)
    push(redis, "slow", seconds=3)
    pid = witness.wait("start")[0].split()[2]
    push(redis, "stuck", how="in_c")
    push(redis, "stuck", how="asleep")
    work.wait_line("job.failed .*job=stuck", count=2, seconds=20)
    assert witness.wait("end")[0].split()[2] == pid
    assert not work.matches("job.failed .*job=slow")
    work.stop()


# -- late alarms, and alarms in our own calls

LATE = (
    STUCK
    + """
@app.job("short", timeout=1, tries=3)
def short() -> None:
    note("short", os.getpid())

@app.on(events.JobProcessed)
def hang(event: events.JobProcessed) -> None:
    if event.job.name == "short":
        time.sleep(60)

@app.job("swallow", timeout=1, tries=3)
def swallow() -> None:
    note("swallow", os.getpid())
    try:
        time.sleep(60)
    except JobTimeout:
        pass

@app.job("send", timeout=0.3, tries=1)
def send() -> None:
    other, sent = app.queue("other"), 0
    try:
        while True:
            other.push("nobody")
            sent += 1
    finally:
        note("sent", sent, other.size())
        other.push("nobody")
        note("then", other.size())
        other.clear()

@app.job("fork", timeout=0.3, tries=1)
def fork() -> None:
    while True:
        if os.fork() == 0:
            os._exit(0)
        os.wait()

@app.job("send in threads", timeout=3, tries=1)
async def send_in_threads() -> None:
    other = app.queue("other")
    await asyncio.gather(*[asyncio.to_thread(other.push, "nobody") for _ in range(100)])
    note("sent", 100, other.size())
    other.clear()
    await asyncio.sleep(60)
"""
)


def test_a_late_alarm_spoils_no_result(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LATE)
    shop.program = GENTLE
    witness = Witness(shop)
    work = ready(shop, "--log-level", "debug")
    for name in ("short", "swallow"):
        push(redis, name)
        work.wait_line(f"job.done .*job={name}")
    work.wait_line(r"worker.left .*exit 15 \(raised\)", count=2)
    push(redis, "quick")
    witness.wait("quick")
    assert len(witness.starting("short")) == len(witness.starting("swallow")) == 1
    work.stop()


@FAILED
def test_an_alarm_during_a_dispatch_waits_for_its_end(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LATE)
    shop.program = GENTLE
    witness = Witness(shop)
    work = ready(shop)
    for count in range(1, 9):
        push(redis, "send")
        sent, size = (int(word) for word in witness.wait("sent", count)[-1].split()[1:])
        assert size == sent or size == sent + 1  # the alarm may come before the job has counted
        assert int(witness.wait("then", count)[-1].split()[1]) == size + 1
    work.wait_line("job.failed .*JobTimeout", count=8)
    assert not work.matches("ConnectionLost|TypeError|ServerRefused|reason=timeout")
    work.stop()


@FAILED
def test_an_alarm_during_a_fork_waits_for_its_end(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LATE)
    shop.program = GENTLE
    work = ready(shop)
    push(redis, "fork", count=10)
    work.wait_line("job.failed .*JobTimeout", count=10)
    assert not work.matches("Exception ignored|reason=timeout")
    work.stop()


@FAILED
def test_sending_in_threads_does_not_keep_the_alarm_off(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LATE)
    shop.program = GENTLE
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "send in threads")
    work.wait_line("job.failed .*JobTimeout")
    assert witness.starting("sent") == ["sent 100 100"]
    work.stop()


# -- the stop, seen from inside a job

STOPS = (
    STUCK
    + """
@app.job("careful")
def careful() -> None:
    note("start")
    try:
        time.sleep(60)
    except JobInterrupted:
        note("interrupted", current_job().stopping)
        raise

@app.job("rude")
def rude() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

@app.job("polite")
def polite() -> None:
    note("start", current_job().stopping)
    while not current_job().stopping:
        time.sleep(0.01)
    note("stopping")

@app.job("careful in async")
async def careful_in_async() -> None:
    note("start")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("interrupted", current_job().stopping)
        raise
"""
)


def test_a_worker_hears_the_stop_although_a_job_took_its_signal_handlers(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=STOPS)
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "rude")
    push(redis, "quick")
    witness.wait("quick")
    eventually(lambda: work.children("waiting on"), what="an idle worker")
    work.stop()  # long before the stop's deadline, 25 s
    assert not work.matches("signal 9")


@pytest.mark.parametrize("name", ["careful", "careful in async"])
def test_a_job_is_interrupted_before_the_stop_deadline_and_handed_back(
    project: MakeProject, redis: Client, name: str
) -> None:
    shop = project(jobs=STOPS)
    witness = Witness(shop)
    work = ready(shop, "--stop-timeout", "4s")  # qd warns it 0.8 s before
    push(redis, name)
    witness.wait("start")
    began = time.monotonic()
    work.stop()
    assert time.monotonic() - began > 1.0
    assert witness.starting("interrupted") == ["interrupted True"]
    assert work.matches("job.released .*the worker stops")
    assert work.matches("master.stopped .*handed_back=1 exit=0")
    assert not work.matches("signal 9")
    (payload,) = redis.text("LRANGE", "queues:default", "0", "-1")
    assert '"attempts":0,' in payload
    redis.call("DEL", "queues:default", "queues:default:notify")


def test_a_job_can_see_that_its_worker_is_stopping(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=STOPS)
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "polite")
    assert witness.wait("start") == ["start False"]
    work.stop(seconds=20)
    assert witness.starting("stopping")
    assert work.matches("master.stopped jobs=1 handed_back=0")
