"""Hosts whose clocks are wrong, and clocks that are set while jobs run: row 33."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from qd.payload.build import make
from tests.support.ledger import JOBS, Ledger
from tests.support.processes import Procs
from tests.support.project import SOURCE, MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures, share
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")

HOUR = 3600.0

# A sitecustomize that shifts time.time() in every process by the number of seconds in a file.
WRONG = """
import os, time

def by():
    try:
        return float(open(os.environ["CLOCK_OFF_BY"]).read())
    except (OSError, ValueError):
        return 0.0

seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + by()
time.time_ns = lambda: nanoseconds() + int(by() * 1e9)
"""


STUCK = (
    JOBS
    + """
@app.job("stuck", timeout=2)
def stuck(n: int, how: str) -> None:
    work(n, 60, how)
"""
)


class Host:
    """A host with its own clock. off_by: seconds."""

    def __init__(self, shop: Project, name: str, off_by: float = 0.0) -> None:
        self.shop, self.file = shop, shop.root / f"clock-{name}"
        folder = shop.root / f"path-{name}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(WRONG)
        shop.allowed |= {folder.name, self.file.name}
        self.env: dict[str, Any] = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(SOURCE)]),
            "CLOCK_OFF_BY": str(self.file),
        }
        self.set(off_by)

    def set(self, off_by: float) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(str(off_by))
        fresh.rename(self.file)

    def work(self, *arguments: str) -> Procs:
        work = self.shop.work(*arguments, **self.env)
        work.wait_line("master.ready")
        return work


def redis_clock(client: Client) -> float:
    """The offset from this machine's monotonic clock to the server's clock. Never too small: it includes the time between
    the two clock readings; the best of several readings is used."""

    def once() -> float:
        before = time.monotonic()
        seconds, micro = (int(word) for word in client.call("TIME"))
        return seconds + micro / 1e6 - before

    return min(once() for _ in range(5))


CLOCKS = pytest.mark.fault(
    "33",
    "hosts whose clocks are an hour apart; clocks set by -30 s and by +1 h while jobs run; 5,000 jobs due at the same time",
    "no job is taken over while it runs, none starts early, timeouts are kept (times: how late a due job starts)",
)


@CLOCKS
@pytest.mark.parametrize("off_by", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_host_with_a_wrong_clock_reclaims_no_running_job(
    off_by: float, project: MakeProject, redis: Client, figures: Figures
) -> None:
    shop = project(jobs=JOBS, config='retry_after = "2s"\n')
    ledger = Ledger(shop, redis)
    right, wrong = Host(shop, "right"), Host(shop, "wrong", off_by)
    one, other = right.work("-w", "1"), wrong.work("-w", "1")
    assert other.lines[0][:13] != one.lines[0][:13], "its clock is not wrong"
    long = ledger.push(2, seconds=5.0)
    ledger.wait_start(long[1])
    shop.python("from jobs import work; work.using(delay=300).dispatch(n=2)", **wrong.env)
    ledger.pushed.append(2)
    payload, due = redis.text("ZRANGE", "queues:default:delayed", "0", "-1", "WITHSCORES")
    seconds, micro = (int(word) for word in redis.call("TIME"))
    now = seconds + micro / 1e6
    assert 0 < float(due) - now <= 300, "due by the wrong clock"
    due = now + 1.5
    redis.call("ZADD", "queues:default:delayed", "XX", due, payload)
    ledger.wait_all()
    assert [len(ledger.starts(n)) for n in ledger.pushed] == [1, 1, 1]
    assert ledger.wait_start(2).at + redis_clock(redis) >= due - 0.001
    one.stop()
    other.stop()
    ledger.conserve()
    figures.tell(ledger)


@CLOCKS
@pytest.mark.leaves("queues:*:deaths", "queues:*:failed", "queues:*:failed_at")
@pytest.mark.parametrize("how", ["sleep", "hold"])
def test_setting_the_clock_does_not_change_timeouts(
    how: str, project: MakeProject, redis: Client, figures: Figures
) -> None:
    shop = project(jobs=STUCK)
    ledger, host = Ledger(shop, redis), Host(shop, "set")
    work = host.work("-w", "2")
    for step in (-30.0, HOUR):
        (n,) = ledger.push(job="stuck", how=how)
        (quick,) = ledger.push(seconds=1.0)
        began = ledger.wait_start(n)
        host.set(step)
        ended = eventually(lambda: gone(began.pid), 20, every=0.002, what="no worker over its timeout")  # noqa: B023
        over = ended - began.at - 2.0
        assert over > -0.1, "ended too early"
        assert not figures.strict or over < 0.5
        ledger.wait_end(quick)
        work.wait_line("job.failed .*job=stuck", count=len(ledger.pushed) // 2)
        host.set(0.0)
    assert not work.matches(r"lease[._]|silent")
    work.stop()
    figures.add()


def gone(pid: int) -> float:
    """The monotonic time at which this process was found to have ended, 0.0 while it lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return time.monotonic()
    return 0.0


@CLOCKS
def test_many_jobs_due_at_the_same_time_start_on_time(project: MakeProject, redis: Client, figures: Figures) -> None:
    shop = project(jobs=JOBS)
    ledger = Ledger(shop, redis)
    numbers = list(range(5000))
    due = int(redis.call("TIME")[0]) + 3
    for n in numbers:
        payload = make("work", json.dumps({"n": n}).encode(), created_at=due)
        redis.call("ZADD", "queues:default:delayed", str(due), payload)
    ledger.pushed += numbers
    work = Host(shop, "ahead", HOUR).work("-w", "2")
    eventually(lambda: len(ledger.ends()) == 5000, 60, every=0.2, what="the end of every job")
    ledger.wait_all()
    off = redis_clock(redis)
    late = sorted(note.at + off - due for note in ledger.starts())
    assert late[0] >= -0.001, "a job began early"
    assert len(late) == 5000
    figures.add(back=[late[0], share(late, 0.5), share(late, 0.99)], first=late[0], rate=5000 / late[-1])
    assert not figures.strict or late[0] < 0.2
    work.stop()
    ledger.conserve()
