"""A lost lease is reported once: to listeners, in the log and in a count, whichever process notices it."""

from __future__ import annotations

import json

import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

LISTENING = (
    JOBS
    + """
import asyncio
from qd import events

@app.job("ends", tries=5)
def ends(how: str) -> None:
    try:
        note("start", os.getpid())
        while not Path("go").exists():
            time.sleep(0.01)
    except BaseException as error:
        note("raised", type(error).__name__)
        raise
    Path("go").unlink()
    if how == "release": current_job().release(60)
    if how == "fail": current_job().fail("why")
    if how == "error": raise ValueError("why")

@app.job("aends", tries=5)
async def aends() -> None:
    note("start", os.getpid())
    try:
        await asyncio.sleep(60)
    except BaseException as error:
        note("raised", type(error).__name__)
        raise

@app.on(events.LeaseLost)
def heard(event: events.LeaseLost) -> None:
    note("heard", event.job.name, event.job.attempt)
    if Path("hang").exists():
        Path("hang").unlink()
        sum(range(10**12))
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=LISTENING)


def steal(redis: Client) -> None:
    """Somebody else has taken the job."""
    (held,) = redis.call("ZRANGE", "queues:default:reserved", "0", "-1")
    assert redis.call("ZREM", "queues:default:reserved", held) == 1


def lost(redis: Client) -> int:
    (report,) = [json.loads(text) for text in redis.call("HVALS", "qd:masters")]
    return int(report["leases_lost"])


@pytest.mark.parametrize("how", ["ack", "ack with a turn", "release", "error", "fail"])
def test_an_ack_that_finds_its_lease_gone_is_logged_and_counted(
    shop: Project, witness: Witness, redis: Client, how: str
) -> None:
    work = ready(shop)
    push(redis, "ends", how=how)
    witness.wait("start")
    if how == "ack with a turn":
        push(redis, "quick")
    steal(redis)
    (shop.root / "go").touch()
    work.wait_line("job.lease_lost .*job=ends")
    assert witness.wait("heard") == ["heard ends 1"]
    eventually(lambda: lost(redis) == 1, what="one lost lease in the report")
    push(redis, "quick")
    assert len(witness.wait("quick", 2 if how == "ack with a turn" else 1)) <= 2
    work.stop()
    assert len(work.matches("lease_lost")) == 1
    assert len(witness.starting("start")) == 1
    assert not witness.starting("raised")
    assert not redis.text("KEYS", "queues:*:failed")


def test_a_lease_that_a_renewal_misses_too_is_counted_once(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LISTENING, config='retry_after = "2s"\n')
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "ends", how="ack")
    witness.wait("start")
    steal(redis)
    assert witness.wait("raised") == ["raised LeaseLost"]
    work.wait_line("job.lease_lost .*job=ends")
    work.wait_line("lease.lost .*job=ends")
    assert witness.wait("heard") == ["heard ends 1"]
    eventually(lambda: lost(redis) == 1, what="one lost lease in the report")
    push(redis, "ends", how="ack")
    witness.wait("start", 2)
    steal(redis)
    (shop.root / "go").touch()
    eventually(lambda: lost(redis) == 2, what="another lost lease in the report")
    work.stop()
    (shop.root / "go").unlink(missing_ok=True)  # its renewal may have been first
    assert len(work.matches(r"lease\.lost")) <= 2


def test_a_lease_that_a_renewal_misses_cancels_an_async_job(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LISTENING, config='retry_after = "2s"\n')
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "aends")
    (started,) = witness.wait("start")
    steal(redis)
    assert witness.wait("raised") == ["raised CancelledError"]
    assert witness.wait("heard") == ["heard aends 1"]
    push(redis, "quick")
    assert witness.wait("quick")[0].split()[2] != started.split()[1]  # its worker takes no other job
    work.stop()


@pytest.mark.leaves("queues:*:deaths")
def test_a_listener_of_a_lost_lease_that_hangs_costs_the_next_job_nothing(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LISTENING + "\nfrom qd.worker import outcome\noutcome.HOOK_SECONDS = 0.5\n")
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "ends", how="ack")
    witness.wait("start")
    (shop.root / "hang").touch()
    push(redis, "quick")
    steal(redis)
    (shop.root / "go").touch()
    work.wait_line("job.killed .*reason=timeout")
    witness.wait("quick")
    work.wait_line("job.done .*job=quick .*attempt=1")
    work.stop()
    assert not work.matches("job.requeued")
