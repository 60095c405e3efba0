"""`qd work` is stopped in every way and at any time, under load and many signals: rows 17 and 18."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import cycle, islice

import psutil
import pytest

from tests.support.ledger import Kill, Ledger
from tests.support.processes import Procs
from tests.support.project import Project, Start
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]

AGAIN = 1.05  # seconds: within one, two signals count as one


def term(work: Procs, draw: random.Random) -> float | None:
    work.signal(draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]))
    return None


def twice(work: Procs, draw: random.Random) -> float | None:
    work.signal(signal.SIGTERM)
    ended_within(work, AGAIN)
    work.signal(signal.SIGTERM)
    return None


def then_kill(work: Procs, draw: random.Random) -> float | None:
    """Like the stop of a container after its grace period."""
    work.signal(signal.SIGTERM)
    ended_within(work, draw.uniform(0.0, 0.2))
    killed_at = time.monotonic()
    work.signal(signal.SIGKILL)
    return killed_at


def all_processes(work: Procs, draw: random.Random) -> float | None:
    """Like a terminal or `systemctl stop`: all processes at once."""
    for process in [psutil.Process(work.pid), *work.children()]:
        try:
            process.send_signal(signal.SIGTERM)
        except psutil.NoSuchProcess:
            continue
    return None


def ended_within(work: Procs, seconds: float) -> bool:
    try:
        work.process.wait(seconds)
    except Exception:  # TimeoutExpired
        return False
    return True


WAYS = {"term": term, "deadline": term, "twice": twice, "then_kill": then_kill, "all_processes": all_processes}


@pytest.mark.fault(
    "17",
    "stopped under load again and again: TERM, INT, QUIT, a deadline, a second TERM, TERM then KILL, all processes at once",
    "running jobs end, or are handed back with their attempt; no stop takes 5 s, no process is left (times: each stop)",
)
@pytest.mark.parametrize(
    "cycles", [pytest.param(10, id="10 times"), pytest.param(200, id="200 times", marks=pytest.mark.slow)]
)
def test_starts_and_stops_under_load_neither_lose_nor_double_jobs(
    cycles: int, shop: Project, ledger: Ledger, figures: Figures, redis: Client
) -> None:
    draw, stops = random.Random(17), []
    for name in islice(cycle(WAYS), cycles):
        work = shop.work("-w", "2", "--max-crashes", "1000", "--stop-timeout", "0.5s" if name == "deadline" else "25s")
        for seconds in draw.choices([0.001, 0.02, 0.3, 1.0], [20, 10, 2, 1], k=15):
            ledger.push(seconds=seconds)
        work.wait_line("job.done", 60)
        time.sleep(draw.uniform(0.0, 0.2))  # any moment will do
        began = time.monotonic()
        workers = work.children("qd: worker")
        killed_at = WAYS[name](work, draw)
        code = work.wait()
        if killed_at is not None:
            ledger.kills += [Kill(worker.pid, killed_at, time.monotonic()) for worker in workers]
        stops.append(time.monotonic() - began)
        assert code in (0, 0 if killed_at is None else -signal.SIGKILL), f"{name}: exit code {code}\n{work.tail()}"
        eventually(lambda: not in_session(work.pid), 20, what=f"no process, no zombie left after {name}")  # noqa: B023
    shop.work("-w", "4", "--max-crashes", "1000", "--stop-when-empty").ends_clean(seconds=60)
    assert not figures.strict or max(stops) < 5
    assert {note.attempt for note in ledger.ends()} == {1}, "a stop cost an attempt"
    ledger.conserve(doubles=ledger.in_flight())
    figures.tell(ledger)
    figures.add(back=stops, p50=1.5)


def in_session(session: int) -> list[int]:
    """Every process of the session, including zombies."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


STORM = (
    *(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGCONT),
)


@pytest.mark.fault(
    "18",
    "10,000 mixed signals at 2,000 a second to the master while workers are killed",
    "every job is done, no child's exit is missed, the number of workers is restored, and TERM ends it with 0",
)
def test_a_storm_of_signals_has_no_lasting_effect(start: Start, ledger: Ledger, figures: Figures) -> None:
    draw = random.Random(18)
    work = start("--max-crashes", "1000", workers=3)
    ledger.push(300, seconds=0.02)
    began = time.monotonic()
    for number in range(10_000):
        work.signal(STORM[number % len(STORM)])
        if number % 500 == 250 and (workers := work.children("qd: worker")):
            ledger.kill(draw.choice(workers).pid)
        while time.monotonic() < began + number / 2000:
            time.sleep(0.0001)  # the rate is part of the fault
    work.signal(signal.SIGCONT)
    quiet = time.monotonic()
    eventually(lambda: settled(work), 60, what="as many workers as are wanted")
    figures.add(settled=time.monotonic() - quiet)
    ledger.wait_all()
    eventually(lambda: not zombies(work), 20, what="no child whose end was missed")
    work.stop()
    ledger.conserve(doubles=ledger.in_flight())
    figures.tell(ledger)


def settled(work: Procs) -> bool:
    """Whether the master reports as many workers as it wants, and they exist."""
    start = len(work.lines)
    work.signal(signal.SIGUSR1)
    state = work.wait_line(r"master.state workers=(\d+) wanted=(\d+) paused=False", 5, start=start)
    has, wanted = int(state[1]), int(state[2])
    return has == wanted == len(work.children("qd: worker"))


def zombies(work: Procs) -> list[tuple[int, int]]:
    """Descendants of the master that have ended and were not reaped, each with its parent."""
    found = []
    for process in psutil.Process(work.pid).children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append((process.pid, process.ppid()))
        except psutil.NoSuchProcess:
            continue
    return found
