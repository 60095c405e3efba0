"""Signed payloads in a real `qd work`: the ones that run, the ones that fail, and that a refused payload is not decoded."""

from __future__ import annotations

import json
import signal

import pytest

from qd.payload.build import make
from qd.payload.signing import Signing
from tests.support.payloads import failed, push, push_raw
from tests.support.project import MakeProject, Project
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
OLD, NEW = "2026a:an-old-secret-of-this-shop", "2026b:a-new-secret-of-this-shop"
CONFIG = '\n[signing]\nkeys = ["{}"]\n'
CHANGED = "its signature does not match: job, id or data were changed, or it was signed with another secret of key"

SHOP = (
    JOBS
    + """
from qd import Job
from qd.events import JobFailed

@app.on(JobFailed)
def listener(event: JobFailed) -> None:
    note("listener", event.job.name)

@app.job("hooked", tries=3)
class Hooked(Job[None]):
    n: int = 0

    def handle(self) -> None:
        note("hooked", self.n, current_job().attempt)

    def failed(self, error: BaseException) -> None:
        note("failed", self.n)

@app.job("thrice", tries=3)
def thrice(how: str) -> None:
    note("thrice", how, current_job().attempt)
    if len(open("witness").read().split(f"thrice {how} ")) <= 3:
        {"raises": lambda: 1 / 0, "releases": current_job().release, "dies": lambda: os._exit(9)}[how]()
    note("end", how)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP, config=CONFIG.format(NEW))


def signed(key: str, n: int = 0, job: str = "hooked") -> bytes:
    data = b'{"n":%d}' % n
    body = make(job, data, uuid="u-1", id=f"id-{n}", created_at=1795225685)
    return Signing([key]).signed(body, "u-1", f"id-{n}", job, data)


@FAILED
@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
def test_what_is_not_signed_right_is_buried_with_its_reason_and_no_code_of_the_job_runs(
    shop: Project, witness: Witness, redis: Client
) -> None:
    good = signed(NEW, 7)
    bad = {
        make("hooked", b'{"n":1}', created_at=1795225685): "unsigned",
        signed("2025c:the-secret-of-mallory", 2): "signed with an unknown key: 2025c",
        signed(OLD, 3).replace(b"2026a", b"2026b"): f"{CHANGED} 2026b",
        signed(NEW, 4).replace(b'"n":4', b'"n":5'): f"{CHANGED} 2026b",
        signed(NEW, 6, "quick").replace(b'"job":"quick"', b'"job":"hooked"'): f"{CHANGED} 2026b",
        make("os.system", b'"touch /tmp/owned"', created_at=1795225685): "unsigned",
    }
    push_raw(redis, *bad, good)
    work = shop.work_off("--tries", "5")
    assert witness.lines == ["hooked 7 1"]
    records = [record for record, _ in failed(redis)]
    assert sorted(record["reason"] for record in records) == sorted(bad.values())
    assert {record["error"] for record in records} == {"SignatureRefused"}
    assert len(work.matches("job.failed .*SignatureRefused: unsigned")) == 2
    assert not work.matches("job.released")


@FAILED
@pytest.mark.parametrize("how", ["raises", "releases", "dies"])
def test_a_signature_outlives_retries_releases_and_crashes(
    shop: Project, witness: Witness, redis: Client, how: str
) -> None:
    shop.python(f'from jobs import thrice\nthrice.using(delay=0.01).dispatch("{how}")')
    work = shop.work("-w", "1", "--tries", "5", "--max-crashes", "5")
    witness.wait(f"end {how}", seconds=20)
    eventually(lambda: not redis.call("ZCARD", "queues:default:reserved"))
    work.stop()
    assert len(witness.starting("thrice")) == 3
    assert not failed(redis)


def test_a_job_handed_back_at_the_stop_is_still_signed(shop: Project, witness: Witness, redis: Client) -> None:
    shop.python("from jobs import slow\nslow.dispatch(30.0)")
    work = shop.work("-w", "1", "--stop-timeout", "0.5s")
    witness.wait("start")
    work.stop()
    (raw,) = redis.call("LRANGE", "queues:default", 0, -1)
    assert json.loads(raw)["attempts"] == 0
    again = shop.work("-w", "1", "--stop-timeout", "0.5s")
    witness.wait("start", 2)
    again.stop()
    redis.call("DEL", "queues:default", "queues:default:notify")


@FAILED
def test_keys_are_rotated_without_losing_a_job(shop: Project, witness: Witness, redis: Client) -> None:
    """Old key -> both, the old one signs -> both, the new one signs -> new key. HUP takes each step."""
    shop.config(CONFIG.format(OLD))
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    for n, keys in enumerate([(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]):
        shop.config(CONFIG.format('", "'.join(keys)))
        work.signal(signal.SIGHUP)
        work.wait_line("master.reloaded", count=n + 1)
        shop.python(f"from jobs import quick\nquick.dispatch({n})")
        witness.wait(f"quick {n}")
    push_raw(redis, signed(OLD, 9))
    work.wait_line("job.failed .*signed with an unknown key: 2026a")
    work.stop()
    assert not witness.starting("hooked")


@FAILED
def test_for_the_time_of_the_roll_out_unsigned_runs_and_a_wrong_signature_never(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.config(CONFIG.format(NEW) + "require = false\n")
    push(redis, "quick", n=1)
    push_raw(redis, signed(OLD, 2), signed(NEW, 3))
    shop.work_off()
    assert [line.split()[:2] for line in witness.lines] == [["quick", "1"], ["hooked", "3"]]
    assert len(failed(redis)) == 1


@pytest.mark.leaves("queues:*")
def test_the_object_jobs_of_php_stay_where_they_are(shop: Project, witness: Witness, redis: Client) -> None:
    """Laravel signs none of them as a rule, and qd runs none of them."""
    push(redis, "Illuminate\\Queue\\CallQueuedHandler@call")
    push_raw(redis, signed(NEW, 1))
    work = shop.work("-w", "1")
    witness.wait("hooked 1")
    work.stop()
    assert redis.call("LLEN", "queues:default") == 1
    assert not failed(redis)


@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
def test_a_whole_payload_can_be_pushed_again(shop: Project, witness: Witness, redis: Client) -> None:
    """A signature proves who made the payload, not how often it may run; see SECURITY.md."""
    push_raw(redis, signed(NEW, 1), signed(NEW, 1))
    shop.work_off()
    assert witness.lines == ["hooked 1 1"] * 2
