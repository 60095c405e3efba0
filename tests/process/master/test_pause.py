"""`qd pause`, `resume`, `down` and `up`, seen by a running `qd work`."""

from __future__ import annotations

import sys
import time
from functools import partial

import psutil
import pytest

from tests.support.deployment import push
from tests.support.keeper import wait_for_reports
from tests.support.processes import Procs, titled
from tests.support.project import Project, idle
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:restart")]


# -- pause and resume


PACED = (
    JOBS
    + """
@app.job("paced")
def paced() -> None:
    note("paced")
    if not Path("fast").exists():
        time.sleep(0.05)
"""
)


def test_pause_is_exact_when_the_command_returns(shop: Project, witness: Witness, redis: Client) -> None:
    """Under load: after the command has returned no further job begins; resume runs all of them."""
    shop.allowed.add("fast")
    shop.jobs(PACED)
    work = idle(shop, "--log-level", "warning", workers=2)
    shop.qd("dispatch", "paced", "--count", "1000")
    witness.wait("paced", 20)
    assert shop.qd("pause", "default").returncode == 0
    reserved = redis.call("ZCARD", "queues:default:reserved")
    left = redis.call("LLEN", "queues:default")
    assert left > 0
    eventually(lambda: redis.call("ZCARD", "queues:default:reserved") == 0)
    assert redis.call("LLEN", "queues:default") == left
    assert len(witness.lines) == 1000 - left
    assert reserved <= 2
    (shop.root / "fast").touch()
    shop.qd("resume", "default")
    witness.wait("paced", 1000, 30)
    work.stop()
    assert len(witness.lines) == 1000


def test_other_queues_continue_while_one_is_paused(shop: Project, witness: Witness, redis: Client) -> None:
    work = idle(shop, "a", "b", "c", "--sleep", "60")
    shop.qd("pause", "a", "c")
    for number, queue in enumerate("abc"):
        push(redis, "quick", {"n": number}, queue)
    assert witness.wait("quick")[0].split()[1] == "1"
    shop.qd("pause")
    push(redis, "quick", {"n": 3}, "b")
    wait_for_reports(redis, 1.5)
    assert len(witness.lines) == 1
    shop.qd("resume", "a")
    assert [line.split()[1] for line in witness.wait("quick", 2, 20)] == ["1", "0"]
    shop.qd("resume")
    assert sorted(line.split()[1] for line in witness.wait("quick", 4, 20)) == ["0", "1", "2", "3"]
    work.stop()


def test_pause_for_a_while_ends_by_itself(shop: Project, witness: Witness, redis: Client) -> None:
    work = idle(shop, "--sleep", "60")
    began = time.monotonic()
    shop.qd("pause", "default", "--for", "1500ms")
    push(redis, "quick", {})
    witness.wait("quick", seconds=20)
    assert time.monotonic() - began > 1.4
    work.stop()


def test_the_reason_of_a_pause_is_shown(shop: Project, redis: Client) -> None:
    work = idle(shop)
    shop.qd("pause", "default", "--reason", "the mail server moves")
    assert "the mail server moves" in shop.qd("status").stdout
    shop.qd("resume")
    assert "the mail server moves" not in shop.qd("status").stdout
    work.stop()


def test_delayed_jobs_of_a_paused_queue_wait(shop: Project, witness: Witness, redis: Client) -> None:
    work = idle(shop)
    shop.qd("pause", "default")
    shop.qd("dispatch", "quick", "--delay", "0.1")
    wait_for_reports(redis, 1.5)
    assert not witness.lines
    shop.qd("resume", "default")
    witness.wait("quick")
    work.stop()


# -- maintenance


def is_down(work: Procs) -> bool:
    return titled(psutil.Process(work.pid)).endswith(", down")


def test_down_holds_every_worker_but_those_with_force(shop: Project, witness: Witness, redis: Client) -> None:
    work = idle(shop, "a", "--sleep", "60")
    forced = idle(shop, "b", "--force")
    shop.qd("down", "--reason", "moving house")
    for program in (work, forced):
        eventually(partial(is_down, program), 20)
    push(redis, "quick", {"n": 1}, "a")
    push(redis, "quick", {"n": 2}, "b")
    assert witness.wait("quick")[0].split()[1] == "2"
    assert "moving house" in shop.qd("status").stdout
    assert len(witness.lines) == 1
    shop.qd("up")
    witness.wait("quick", 2)
    work.stop()
    forced.stop()


HELD = (
    JOBS
    + """
@app.job("held")
def held(n: int) -> None:
    note("start", n)
    while not Path("go").exists():
        time.sleep(0.01)
    note("end", n)
"""
)


def test_down_lets_the_current_job_finish_and_holds_the_next(shop: Project, witness: Witness, redis: Client) -> None:
    shop.allowed.add("go")
    shop.jobs(HELD)
    work = idle(shop)
    for number in range(2):
        push(redis, "held", {"n": number})
    witness.wait("start")
    shop.qd("down")
    eventually(partial(is_down, work), 20)
    (shop.root / "go").touch()
    witness.wait("end")
    eventually(lambda: work.children(" down"), 20)
    assert len(witness.starting("start")) == 1
    shop.qd("up")
    witness.wait("end", 2)
    work.stop()


# A keeper that is slow between its first contact and whatever it notes after it: workers may look in the meantime.
SLOW_KEEPER = """
import sys, time
from qd.cli.main import main
from qd.process.scoreboard import H, Scoreboard
real = Scoreboard.set_header
def slow(board, word, value):
    real(board, word, value)
    time.sleep(0.5 * (word is H.KEEPER_CONTACT))
Scoreboard.set_header = slow
main()
"""


def test_a_worker_that_looks_at_the_keeper_s_first_contact_knows_of_maintenance(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.qd("down")
    push(redis, "quick", {})
    work = Procs([sys.executable, "-c", SLOW_KEEPER, "work", "-w", "2"], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    eventually(lambda: len(work.children(" down")) == 2, 20)
    assert not witness.lines
    work.stop()
    shop.qd("up")
    redis.call("DEL", "queues:default", "queues:default:notify")


def test_a_program_that_starts_in_maintenance_takes_nothing(shop: Project, witness: Witness, redis: Client) -> None:
    shop.qd("down")
    push(redis, "quick", {})
    work = shop.work("-w", "2")
    eventually(lambda: len(work.children(" down")) == 2, 20)
    assert not witness.lines
    shop.qd("up")
    witness.wait("quick")
    work.stop()
