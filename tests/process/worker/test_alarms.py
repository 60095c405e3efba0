"""SIGALRM in a worker: at any line of qd's own code, and from a source that is not qd."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest

from qd.worker.connection import Checkpoints
from tests.support.payloads import failed, push
from tests.support.project import GENTLE, MakeProject, ready
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- an alarm at each line


POINTS = (
    JOBS
    + """
import asyncio, signal
import qd
from qd import Job, events
from qd.process.scoreboard import W, Why

HOME = str(Path(qd.__file__).parent) + os.sep

class Point:
    at = count = 0

def line(frame, event, arg):
    if event == "line" and Point.at:
        Point.count += 1
        if Point.count == Point.at:
            fire(frame)
    return line

def fire(frame):
    Path("point").write_text(str(Point.at + int(os.environ["EACH"])))
    Point.at = 0
    where = f"{frame.f_code.co_filename[len(HOME):]}:{frame.f_lineno}:{frame.f_code.co_qualname}"
    slot = signal.getsignal(signal.SIGALRM).__self__._slot
    slot[W.WHY] = Why.TIMEOUT | (slot[W.TURN] & 0xFFFFFFFF) << 8  # as a master tells it
    try:
        signal.raise_signal(signal.SIGALRM)
        note("quiet", os.getpid(), where)
    except BaseException as error:
        note("raised", os.getpid(), where, type(error).__name__)
        raise

def call(frame, event, arg):
    if not frame.f_code.co_filename.startswith(HOME):
        return None
    if frame.f_code.co_name == "_do":
        if Point.at:
            Path("over").touch()  # a whole turn has fewer lines
        Point.at = 0 if Path("over").exists() else int(Path("point").read_text())
        Point.count = 0
    return line

@app.on(events.WorkerStarting)
def trace(event):
    sys.settrace(call)

@app.on(events.JobProcessing)
def before(event):
    pass

@app.on(events.JobProcessed)
def after(event):
    pass

@app.job("done", tries=1)
def done(n: int) -> None:
    note("run", os.getpid(), n)

@app.job("raises", tries=1)
class Raises(Job[None]):
    n: int

    def handle(self) -> None:
        note("run", os.getpid(), self.n)
        raise ValueError("no")

    def failed(self, error: BaseException) -> None:
        pass

@app.job("again", tries=9)
def again(n: int) -> None:
    note("run", os.getpid(), n)
    if current_job().attempt == 1:
        current_job().release()

@app.job("async", tries=1)
async def asleep(n: int) -> None:
    note("run", os.getpid(), n)
    await asyncio.sleep(0)

@app.job("sends", tries=1)
def sends(n: int) -> None:
    note("run", os.getpid(), n)
    current_job().checkpoint({"n": n})
    app.queue("other").push("nobody", n)
"""
)


# Which lines: every one of them takes a minute and more.
@FAILED
@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["done", "raises", "again", "async", "sends"])
def test_an_alarm_at_any_point_tears_nothing_of_ours(project: MakeProject, redis: Client, kind: str, each: int) -> None:
    shop = project(jobs=POINTS)
    shop.allowed |= {"point", "over"}
    witness = Witness(shop)
    (shop.root / "point").write_text("1")
    work = shop.work("-w", "1", EACH=str(each))
    pushed = 0
    while not (shop.root / "over").exists():
        for n in range(pushed, pushed + 50):
            push(redis, kind, n=n)
        pushed += 50
        eventually(lambda: not redis.call("EXISTS", "queues:default"), 30, what="a worked off queue")
    work.wait_line("job.(done|failed|released)", 20)
    places = [
        f"queues:default{kind}" for kind in ("", ":reserved", ":delayed")
    ]  # in one look: `again` goes back to ready
    eventually(lambda: not redis.call("EXISTS", *places), 20, what="every job settled")
    work.stop()

    ended = [m[1] for m in work.matches(r"job.(?:done|failed) .*id=(\w+)")]
    assert Counter(ended).most_common(1)[0][1] == 1, "a job was settled twice"
    assert len(ended) == pushed, "a job was not settled"
    assert len(failed(redis)) == len(work.matches("job.failed"))
    assert not work.matches("worker.died|job.killed|lease_lost|worker.silent|ServerRefused|ConnectionLost")

    fired = [line.split() for line in witness.lines if line.startswith(("raised", "quiet"))]
    raised = [line for line in fired if line[0] == "raised"]
    assert len(fired) > 150 / each, "the alarm was not everywhere"
    assert {line[3] for line in raised} <= {"JobTimeout"}
    if kind != "async":  # there the task is cancelled, and the handler raises nothing
        assert len(raised) > 5 / each
    # A worker that raised runs nothing any more.
    last: dict[str, int] = {}
    for at, line in enumerate(witness.lines):
        word, pid, *_ = line.split()
        if word == "raised":
            last[pid] = at
        assert word != "run" or pid not in last, f"{pid} raised and took another job"
    # The job itself calls Checkpoints.keep: the shield begins and ends in a line of Checkpoints._call.
    lines, first = inspect.getsourcelines(Checkpoints._call)
    at = first + lines.index("        with shield:\n")
    shield = f"worker/connection.py:{at}:Checkpoints._call"
    inside_qd = re.compile(r"drivers/|worker/(worker|connection|settle)\.py:\d+:(?!Checkpoints\.keep$)")
    outside = [line[2] for line in raised if inside_qd.match(line[2]) and line[2] != shield]
    assert not outside, f"raised outside user code: {outside}"
    if kind == "sends":
        sent = redis.call("LLEN", "queues:other")
        assert sent == redis.call("LLEN", "queues:other:notify")
        redis.call("DEL", "queues:other", "queues:other:notify")


# -- alarms that qd did not set


STRAY = (
    JOBS
    + """
import signal, threading

begun, rung = threading.Event(), threading.Event()

def ring():
    begun.wait(30)
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.005)
    rung.set()

@app.job("leaves")
def leaves() -> None:
    threading.Thread(target=ring, daemon=True).start()
    note("leaves", os.getpid())

@app.job("victim", timeout=30, tries=1)
def victim() -> None:
    begun.set()
    note("victim", os.getpid(), rung.wait(20))

@app.job("endless", tries=1)
def endless() -> None:
    begun.set()
    note("victim", os.getpid(), rung.wait(20))

@app.job("timer", timeout=1, tries=1)
def timer() -> None:
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(60)
    finally:
        note("timer", type(sys.exc_info()[1]).__name__, time.monotonic() - began)
"""
)


@pytest.mark.parametrize("name", ["victim", "endless"])
def test_an_alarm_of_a_thread_that_a_job_before_left_ends_nothing(
    project: MakeProject, redis: Client, name: str
) -> None:
    shop = project(jobs=STRAY)
    witness = Witness(shop)
    work = ready(shop, "--timeout", "0")
    push(redis, "leaves")
    push(redis, name)
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    ((_, left),) = (line.split() for line in witness.starting("leaves"))
    assert witness.starting("victim") == [f"victim {left} True"], "it ran in the worker of that thread, to its end"
    assert not work.matches("job.failed|worker.died")


@FAILED
def test_a_job_that_takes_the_timer_is_ended_at_its_timeout_and_not_before(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=STRAY)
    shop.program = GENTLE
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "timer")
    (line,) = witness.wait("timer")
    work.wait_line("job.failed.*JobTimeout: ran longer than its timeout of 1s")
    work.stop()
    _, kind, took = line.split()
    assert (kind, float(took) > 0.98) == ("JobTimeout", True), "its clock starts a little after the deadline's"
