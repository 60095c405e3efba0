"""Workers and templates that stop answering are logged, killed and replaced; those that only wait are left alone."""

from __future__ import annotations

import os
import signal
import sys
import time

import psutil
import pytest

from tests.support.network import Proxy
from tests.support.payloads import push
from tests.support.processes import Procs
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
BOUND = 10.0 + 3 * 0.2  # seconds without a heartbeat that a worker is allowed, with --sleep 0.2
# `qd` with less patience for a worker that does not wait for its server.
SOON = 4.0 + 3 * 0.2
IMPATIENT = (
    sys.executable,
    "-c",
    "from qd.master import code; code.SILENCE = code.ANSWER = 4.0\nfrom qd.cli.main import main; main()",
)

# One of the workers has the listener, and only it: one that is stopped while it tells a listener has announced a minute.
SLOW = (
    JOBS
    + """
from qd import events

@app.on(events.WorkerStarting)
def first_only(event: events.WorkerStarting) -> None:
    try:
        Path("listens").open("x").close()
    except FileExistsError:
        return
    app.on(events.Looping)(look)

def look(event: events.Looping) -> None:
    if Path("slow").exists():
        Path("slow").unlink()
        note("listening", os.getpid())
        held()
        note("listened", os.getpid())
"""
)


def idle(work: Procs, count: int) -> list[psutil.Process]:
    found: list[psutil.Process] = eventually(
        lambda: len(work.children("waiting on")) == count and work.children("waiting on"), what="idle workers"
    )
    return found


def test_a_stopped_worker_is_replaced_and_one_in_a_long_listener_is_left_alone(
    project: MakeProject, redis: Client
) -> None:
    shop = project(jobs=SLOW)
    witness = Witness(shop)
    shop.allowed |= {"slow", "listens"}
    shop.program = IMPATIENT
    work = shop.work("-w", "2", "--sleep", "0.2")
    workers = idle(work, 2)
    (shop.root / "slow").touch()
    listening = int(witness.wait("listening")[0].split()[1])
    (stopped,) = (worker for worker in workers if worker.pid != listening)
    stopped.suspend()
    line = work.wait_line(f"worker.silent .*pid={stopped.pid} ", SOON + 20).string
    assert float(line.rpartition("seconds=")[2]) >= SOON
    work.wait_line(f'worker.died .*pid={stopped.pid} how="signal 9 .SIGKILL." reason="stopped answering"')
    push(redis, "quick")
    assert witness.wait("quick")[0].split()[2] not in (str(stopped.pid), str(listening))
    witness.go()
    witness.wait(f"listened {listening}", seconds=20)
    idle(work, 2)
    assert len(work.matches("worker.silent")) == 1
    assert psutil.pid_exists(listening)
    work.stop()


STUCK = (
    JOBS
    + """
import signal, threading

def stuck_here(*_):
    while True:
        time.sleep(1)

def once_idle():
    while b"waiting on" not in Path("/proc/self/cmdline").read_bytes():  # the title that it has behind a job
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGVTALRM)

@app.job("mine")
def mine() -> None:
    signal.signal(signal.SIGVTALRM, stuck_here)
    threading.Thread(target=once_idle).start()
    note("mine", os.getpid())
"""
)


def test_a_worker_that_is_stuck_between_two_jobs_is_killed_and_its_stack_is_logged(
    project: MakeProject, redis: Client
) -> None:
    shop = project(jobs=STUCK)
    shop.program = IMPATIENT
    witness = Witness(shop)
    work = shop.work("-w", "1", "--sleep", "0.2")
    push(redis, "mine")
    pid = witness.wait("mine")[0].split()[1]
    work.wait_line(f"worker.died .*pid={pid} .*stopped answering", SOON + BROUGHT)
    work.wait_line(" in stuck_here")
    push(redis, "quick")
    assert witness.wait("quick")[0].split()[2] != pid
    work.stop()


def test_no_worker_is_killed_as_silent_while_redis_does_not_answer(
    project: MakeProject, server: Server, redis: Client
) -> None:
    with Proxy(server.socket) as proxy:
        shop = project(jobs=JOBS, url=proxy.url)
        witness = Witness(shop)
        work = shop.work("-w", "3", "--sleep", "0.2")
        paused = shop.work("-w", "1", "--sleep", "0.2")
        idle(work, 3)
        paused.wait_line("master.ready")
        paused.signal(signal.SIGUSR2)
        paused.wait_line("master.paused")
        push(redis, "slow", seconds=2)
        witness.wait("start")
        proxy.silence()
        witness.wait("end")
        work.wait_line("redis.away", 20)
        pids = {p.pid for p in work.children("qd: worker") + paused.children("qd: worker")}
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > BOUND + 3, 40, what="an outage longer than the patience")
        assert pids == {p.pid for p in work.children("qd: worker") + paused.children("qd: worker")}
        proxy.heal()
        work.wait_line("redis.back", 20)
        push(redis, "quick")
        witness.wait("quick", seconds=20)
        assert not work.matches("worker.silent") + paused.matches("worker.silent")
        paused.stop()
        work.stop()


# `qd` with less patience for a requested worker: the master waits twice as long for a template that is stopped.
HASTY = """
import sys
from qd.cli.main import main
from qd.master import children
children.SPAWN_PATIENCE = 3.0
sys.argv = ["qd", *sys.argv[4:]]  # after: python -m qd
main()
"""


def test_a_template_that_hangs_is_replaced(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    work = shop.work("-w", "1", "--sleep", "0.2", within=[sys.executable, "-c", HASTY])
    (worker,) = idle(work, 1)
    template = work.child("qd: template")
    template.suspend()
    os.kill(worker.pid, signal.SIGKILL)
    work.wait_line(f"template.silent .*pid={template.pid}", 40)
    work.wait_line("template.died .*signal 9")
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
