"""Jobs that close or use up the descriptors of their worker, and a program that starts with more than select(2) can take."""

from __future__ import annotations

import sys
import time

import pytest

from qd.payload.build import make
from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- jobs that close or use up descriptors


CLOSING = (
    JOBS
    + """
import resource

kept = []

@app.job("closes")
def closes(then: str = "") -> None:
    note("closes", os.getpid())
    os.closerange(3, 4096)
    if then == "opens":  # the numbers of the pipe and of the connection are these files' now
        kept.extend(open("witness") for _ in range(64))
    elif then == "checkpoint":
        current_job().checkpoint({"at": 1})
    elif then == "raises":
        raise ValueError("and it fails")

@app.job("hoards")
def hoards() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        raise ValueError("no descriptor is left") from None

@app.job("loop")
async def loop() -> None:
    note("loop")
"""
)


@pytest.mark.parametrize("then", ["", "opens", "checkpoint", "raises"])
def test_a_job_that_closes_every_descriptor_is_answered_once(project: MakeProject, redis: Client, then: str) -> None:
    shop = project(jobs=CLOSING)
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "loop")
    push(redis, "closes", then=then)
    push(redis, "quick", count=2)
    witness.wait("quick", 2)
    (closed,) = witness.starting("closes")
    if then == "raises":
        work.wait_line("job.failed.*and it fails")
        assert len(failed(redis)) == 1
        redis.call("DEL", "queues:default:failed", "queues:default:failed_at")
    assert closed.split()[1] not in {line.split()[2] for line in witness.starting("quick")}
    work.stop()
    assert len(work.matches("worker.descriptors_closed")) == 1
    assert not work.matches("worker.died"), "it left by itself"
    assert not work.matches("lease_lost")


@FAILED
def test_a_job_that_takes_every_descriptor_is_answered_once(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=CLOSING)
    witness = Witness(shop)
    work = ready(shop, "--max-jobs", "1")
    push(redis, "hoards")
    work.wait_line("job.failed .*job=hoards")
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    assert [record["error"] for record, _ in failed(redis)] == ["ValueError"]
    assert not work.matches("worker.died")


# -- more descriptors at the start than select(2) can take


MANY = """
import os, resource, sys

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
while True:
    fd = os.dup(0)
    os.set_inheritable(fd, True)
    if fd > 1100:
        break
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_more_descriptors_than_select_takes(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1", within=[sys.executable, "-c", MANY])
    work.wait_line("master.ready")
    redis.call(
        "ZADD", "queues:default:delayed", int(time.time()), make("quick", b"{}", created_at=0)
    )  # the keeper moves it
    witness.wait("quick")
    work.wait_line("job.done")  # logged by the worker
    work.stop()
    assert not work.matches("keeper.died|WARN|ERROR")
