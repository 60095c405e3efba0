"""Jobs that close descriptors of their worker, or leave it none: each is answered once, and the next one finds a worker
that is whole."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push
from tests.support.project import MakeProject, ready
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

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
