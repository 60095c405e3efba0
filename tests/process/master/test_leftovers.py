"""Processes that a killed job has started end with it, also in a session of their own; other processes do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]

LEAVING = (
    JOBS
    + """
import signal, subprocess

def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

@app.job("daemon")
def daemon() -> None:
    note("daemon", subprocess.Popen(["sleep", "300"], start_new_session=True).pid)

@app.job("waits")
def waits() -> None:
    note("start", 0, os.getpid())
    held()
    note("end")

@app.job("session", tries=3)
def session() -> None:
    if Path("pids").exists():
        note("again", sum(lives(int(pid)) for pid in Path("pids").read_text().split()))
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    script = "sleep 300 & setsid sleep 300 & echo $$ $! >> pids.new; mv pids.new pids; wait"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    while not Path("pids").exists():
        time.sleep(0.01)
    note("start", os.getpid())
    time.sleep(300)
"""
)


def ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def start_of(pid: int) -> int:
    """Return ticks since the boot, from the kernel: psutil adds a boot time rounded to whole seconds."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def shop(project: MakeProject) -> Project:
    made = project(jobs=LEAVING)
    made.allowed |= {"pids"}
    return made


@pytest.mark.parametrize("how", ["kill -9", "timeout"])
def test_what_a_killed_job_started_in_another_session_is_gone_before_it_runs_again(
    shop: Project, redis: Client, how: str
) -> None:
    witness = Witness(shop)
    work = shop.work("-w", "1", "--timeout", "1s" if how == "timeout" else "0")
    push(redis, "daemon")
    daemon = psutil.Process(int(witness.wait("daemon")[0].split()[1]))
    # The kernel reports start times in ticks of 10 ms: a process started in the tick of the job's start counts as the job's.
    eventually(lambda: ticks() - start_of(daemon.pid) > 2, what="another tick")
    push(redis, "session")
    pid = int(witness.wait("start")[0].split()[1])
    if how == "kill -9":
        os.kill(pid, signal.SIGKILL)
    assert witness.wait("again", seconds=BROUGHT) == ["again 0"]
    work.wait_line("job.leftover_ended .*job=session processes=[23]")
    assert daemon.is_running(), "it is of a job that has ended well"
    daemon.kill()
    work.stop()


def test_another_worker_s_processes_are_left_alone(shop: Project, redis: Client) -> None:
    witness = Witness(shop)
    work = shop.work("-w", "2")
    shop.allowed.add("go")
    push(redis, "waits")
    other = int(witness.wait("start")[0].split()[2])
    push(redis, "session")  # its processes are younger than the other job
    stays = int(witness.wait("start", 2)[1].split()[1])
    theirs = [int(pid) for pid in (shop.root / "pids").read_text().split()]
    assert other != stays
    os.kill(other, signal.SIGKILL)
    work.wait_line("job.requeued .*job=waits")
    (shop.root / "go").touch()
    witness.wait("end")
    assert all(psutil.pid_exists(pid) for pid in theirs)
    os.kill(stays, signal.SIGKILL)
    witness.wait("again")
    work.stop()


@pytest.mark.leaves("qd:masters")
def test_thousands_of_dead_masters_do_not_keep_a_keeper_from_its_work(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS, config='retry_after = "2s"\n')  # a keeper is replaced after 3 s of silence
    witness = Witness(shop)
    gone = subprocess.Popen(["true"])
    gone.wait()
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    (text,) = eventually(lambda: [*redis.hash("qd:masters").values()], what="a report")
    work.stop()
    report = json.loads(text) | {"pid": gone.pid, "start": 1}
    owners = [f"Dead{number:06}" for number in range(20_000)]
    for at in range(0, len(owners), 1000):
        pairs = [word for dead in owners[at : at + 1000] for word in (dead, json.dumps(report | {"token": dead}))]
        redis.call("HSET", "qd:masters", *pairs)
    held = json.dumps({"id": "held", "job": "quick", "data": {"n": 9}, "attempts": 1, "rsv": f"{owners[0]}.0.1.1"})
    raw = held.replace('"attempts": 1, "rsv": ', '"attempts":1,"rsv":')
    redis.call("ZADD", "queues:default:reserved", str(int(redis.text("TIME")[0]) + 3600), raw)
    redis.call("HSET", "queues:default:owners", f"{owners[0]}/0", raw)
    again = shop.work("-w", "1")
    push(redis, "quick", n=1)
    witness.wait("quick 1")
    witness.wait("quick 9", seconds=30)
    eventually(lambda: int(redis.call("HLEN", "qd:masters")) == 1, 30, what="no report of a dead master")
    assert not again.matches("keeper.silent|keeper.died")
    again.stop()
