"""A job finds the socket on which the master hears its children, and lies: the master believes and loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from tests.support.clock import eventually
from tests.support.deployed import push
from tests.support.project import Project
from tests.support.resp import Client
from tests.support.witness import JOBS, Witness

MakeProject = Callable[..., Project]
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:failed*", "queues:*:deaths")]

LIES = (
    JOBS
    + """
import json, os, signal, socket, stat, subprocess

def lines():
    for fd in range(3, 64):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            continue
        found = socket.socket(fileno=os.dup(fd)) if is_socket else None
        if found is not None and (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_DGRAM):
            yield found

def news():
    return next(lines())

def tell(fd=None, **message):
    data = json.dumps(message).encode()
    for line in lines():
        socket.send_fds(line, [data], [] if fd is None else [fd])

@app.job("lie")
def lie(message: dict) -> None:
    for generation in range(1, 5):
        tell(**{"slot": 0, "generation": generation, **message})
    note("lie")

@app.job("drop")
def drop() -> None:
    for turn in range(4):
        tell(kind="lost", slot=0, generation=1, turn=turn)
    time.sleep(1)
    note("drop")

@app.job("claim")
def claim() -> None:
    outsider = subprocess.Popen(["sleep", "60"], start_new_session=True, env={})
    for word in ("", "0" * 16):
        for generation in range(1, 5):
            tell(kind="born", slot=0, generation=generation, word=word, pid=outsider.pid)
    note("claim", outsider.pid)
    os.kill(os.getpid(), signal.SIGKILL)

@app.job("stack", timeout=0.5)
def stack() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    end, _ = os.pipe()
    for generation in range(1, 5):
        tell(end, kind="ready", slot=0, generation=generation)
    note("stack")
    time.sleep(60)

@app.job("hand")
def hand(count: int) -> None:
    end, other = os.pipe()
    for n in range(count):
        socket.send_fds(news(), [b'{"kind":"born"}'], [end, other] if n % 2 else [end])
    note("hand")

@app.job("flood", timeout=1.0)
def flood() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    note("flood")
    os.fork(), os.fork()
    line = news()
    while True:
        line.send(b'{"kind":"born"}')
"""
)
BORN = {"kind": "born", "word": ""}
LIED = {
    "a pid that is none": {**BORN, "generation": 99, "pid": -5},
    "a pid beyond all": {**BORN, "pid": 1 << 70},
    "a slot that is none": {**BORN, "slot": [], "pid": (1 << 31) - 1},
    "a restart": {"kind": "restart"},
    "a change of the code": {"kind": "changed", "code": 1, "file": "x"},
    "a worker without a process": {"kind": "unborn", "error": "x", "word": ""},
}


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=LIES)


@pytest.mark.parametrize("lie", LIED)
def test_a_lie_changes_nothing(shop: Project, witness: Witness, redis: Client, lie: str) -> None:
    work = shop.work("-w", "1")
    push(redis, "lie", {"message": LIED[lie]})
    push(redis, "quick", {})
    witness.wait("quick")
    work.stop()
    assert not work.matches("Traceback|master.reloading|qd restart|worker.died")
    assert len(work.matches("master.message_rejected")) <= 1


def test_no_lease_is_lost_but_by_the_word_of_the_keeper(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1")
    push(redis, "drop", {})
    witness.wait("drop")
    work.wait_line("job.done")
    work.stop()
    assert not work.matches("ERROR")


def test_a_worker_without_a_master_believes_its_keeper_only(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "0")
    push(redis, "lie", {"message": {"kind": "restart"}})
    push(redis, "quick", {})
    witness.wait("quick")
    work.stop()
    assert not work.matches("qd restart")


def test_no_import_is_believed_but_of_who_imports(project: MakeProject, redis: Client) -> None:
    shop = project(jobs="while Path('slow').exists():\n    time.sleep(0.01)\n" + LIES)
    shop.allowed.add("slow")
    witness, work = Witness(shop), shop.work("-w", "1")
    work.wait_line("master.ready")
    (shop.root / "slow").touch()
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloading")
    forged = {"kind": "imported", "code": 2, "settings": "x", "preload": True, "warnings": [], "jobs": 1}
    push(redis, "lie", {"message": forged})
    work.wait_line("master.message_rejected news=imported")
    witness.wait("lie")
    (shop.root / "slow").unlink()
    work.wait_line("master.reloaded", 20)
    work.stop()


def test_no_worker_is_born_but_where_the_master_has_asked(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1", "--max-crashes", "1")
    push(redis, "claim", {})
    outsider = witness.wait("claim")[0].split()[1]
    work.wait_line("worker.died")
    work.wait_line("job.failed")
    work.stop()
    assert psutil.pid_exists(int(outsider))
    os.kill(int(outsider), signal.SIGKILL)


def test_what_is_no_file_takes_no_stack(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1")
    push(redis, "stack", {})
    work.wait_line("job.killed")
    push(redis, "quick", {})
    witness.wait("quick")
    work.wait_line("job.failed")
    work.stop()


def test_descriptors_that_come_with_lies_are_closed(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    before = psutil.Process(work.process.pid).num_fds()
    push(redis, "hand", {"count": 200})
    witness.wait("hand")
    eventually(lambda: psutil.Process(work.process.pid).num_fds() <= before + 2, what="no more descriptors than before")
    work.stop()


def test_news_without_end_keep_the_master_from_nothing(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1")
    push(redis, "flood", {})
    witness.wait("flood")
    work.wait_line("job.killed.*reason=timeout", 20)
    push(redis, "quick", {})
    witness.wait("quick")
    work.wait_line("job.failed")
    work.stop()
    assert len(work.matches("master.message_rejected")) <= 3
