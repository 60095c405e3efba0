"""A live master is never taken for a dead one: in another container, with a reused pid, or where it cannot be seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from qd.process import proc
from tests.support.keeper import wait_for_reports
from tests.support.payloads import push
from tests.support.processes import QD, Procs
from tests.support.programs import missing, program
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


def contained(shop: Project, *arguments: str) -> Procs:
    """`qd work` in a pid namespace of its own with its own /proc, as in a container of the same host and name."""
    program("unshare")
    wrapped = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*wrapped, "true"], capture_output=True, check=False).returncode:
        missing("the right to make a pid namespace")
    work = Procs([*wrapped, *QD, "work", *arguments], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    work.wait_line("master.ready")
    return work


def stop_inside(work: Procs) -> None:
    """Send TERM to the master, which is a child of unshare."""
    (master,) = psutil.Process(work.pid).children()
    master.send_signal(signal.SIGTERM)
    work.ends_clean()


def reports(redis: Client) -> list[dict[str, Any]]:
    return [json.loads(text) for text in redis.hash("qd:masters").values()]


@pytest.mark.parametrize("inside_first", [True, False], ids=["the container's job", "the host's job"])
def test_a_master_in_a_container_and_one_outside_leave_each_other_s_jobs_alone(
    project: MakeProject, redis: Client, inside_first: bool
) -> None:
    shop = project(jobs=JOBS + LASTS)
    witness = Witness(shop)
    first = contained(shop, "-w", "1") if inside_first else shop.work("-w", "1")
    first.wait_line("master.ready")
    push(redis, "lasts")
    witness.wait("start")
    (one,) = eventually(lambda: reports(redis), what="its report")
    second = shop.work("-w", "2") if inside_first else contained(shop, "-w", "2")  # two: if it takes that job, too
    second.wait_line("master.ready")
    (other,) = eventually(lambda: [each for each in reports(redis) if each["ns"] != one["ns"]], what="the other report")
    assert (one["host"], one["boot"]) == (other["host"], other["boot"])
    push(redis, "quick")
    witness.wait("quick")
    wait_for_reports(redis, 1.5)  # it has looked for dead masters since
    witness.go()
    witness.wait("end")
    assert len(witness.starting("start")) == len(witness.starting("end")) == 1
    assert not first.matches("requeued|lease") + second.matches("requeued|lease")
    inside, outside = (first, second) if inside_first else (second, first)
    stop_inside(inside)
    outside.stop()


HOLD = json.dumps({"id": "held", "job": "quick", "data": {"n": 9}, "attempts": 1, "rsv": "Elsewhere0.0.1.1"})
HELD = HOLD.replace('"attempts": 1, "rsv": ', '"attempts":1,"rsv":')


def held_by(redis: Client, shop: Project, **facts: object) -> None:
    """A job reserved by another master of this host, whose report is as that of a real one but for `facts`."""
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    report = eventually(lambda: reports(redis), what="a report")[0]
    work.stop()
    report |= {"token": "Elsewhere0", "workers": [], **facts}
    redis.call("HSET", "qd:masters", "Elsewhere0", json.dumps(report))
    redis.call("ZADD", "queues:default:reserved", str(int(redis.text("TIME")[0]) + 3600), HELD)
    redis.call("HSET", "queues:default:owners", "Elsewhere0/0", HELD)


@pytest.fixture
def stranger() -> Any:
    """A living process that is no qd."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait()


def test_a_pid_that_another_process_has_now_is_a_dead_master(
    project: MakeProject, redis: Client, stranger: subprocess.Popen[bytes]
) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    held_by(redis, shop, pid=stranger.pid, start=(proc.start_time(stranger.pid) or 0) - 1)
    work = shop.work("-w", "1")
    work.wait_line("job.requeued .*job=quick.*its master died")
    witness.wait("quick 9")
    work.stop()
    assert stranger.poll() is None


@pytest.mark.parametrize("unknown", ["nothing", "start", "boot", "ns", "host"])
def test_a_master_that_may_live_keeps_its_job_until_the_lease_expires(
    project: MakeProject, redis: Client, stranger: subprocess.Popen[bytes], unknown: str
) -> None:
    shop = project(jobs=JOBS, config='retry_after = "6s"\n')
    witness = Witness(shop)
    start = proc.start_time(stranger.pid)
    dead = {"pid": stranger.pid, "start": (start or 0) - 1}
    facts: dict[str, dict[str, object]] = {
        "nothing": {"pid": stranger.pid, "start": start},
        "start": {"pid": stranger.pid, "start": None},
        "boot": {**dead, "boot": ""},
        "ns": {**dead, "ns": ""},
        "host": {**dead, "host": "elsewhere"},
    }
    held_by(redis, shop, **facts[unknown])
    work = shop.work("-w", "1")
    push(redis, "quick", n=1)
    witness.wait("quick 1")
    eventually(lambda: redis.call("ZCARD", "queues:default:reserved") == 1, what="its ack")
    wait_for_reports(redis, 1.2)
    assert redis.text("ZRANGE", "queues:default:reserved", "0", "-1") == [HELD]
    redis.call("ZADD", "queues:default:reserved", "XX", "1", HELD)  # its lease has run out
    witness.wait("quick 9", seconds=30)
    work.wait_line("lease.expired jobs=1")
    work.stop()
    redis.call("HDEL", "qd:masters", "Elsewhere0")
    assert os.path.exists(f"/proc/{stranger.pid}")
