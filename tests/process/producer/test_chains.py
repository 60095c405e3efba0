"""Chains through the real worker: the next only after success, what catches a failure, and what remains of it."""

from __future__ import annotations

import json
import time

import pytest

from qd.payload.build import make
from tests.support.payloads import failed, push_raw
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
SHOP = (
    JOBS
    + """
@app.job("step", tries=2)
def step(name: str, fails: bool = False) -> None:
    note("step", name, current_job().attempt)
    if fails and not os.path.exists("mended"):
        raise ValueError("this step does not work")

@app.job("aside", queue="other")
def aside(name: str) -> None:
    note("step", name, current_job().queue)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP)


def test_each_job_runs_when_the_one_before_has_succeeded(shop: Project, witness: Witness) -> None:
    shop.python("from jobs import *\napp.chain(step.bind('a'), aside.bind('b'), step.bind('c')).dispatch()")
    shop.work_off("default", "other")
    assert witness.lines == ["step a 1", "step b other", "step c 1"]


def test_only_the_first_is_in_the_queue_at_first(shop: Project, redis: Client) -> None:
    done = shop.python("from jobs import *\nprint(app.chain(step.bind('a'), step.bind('b')).dispatch().id)")
    (payload,) = redis.call("LRANGE", "queues:default", 0, -1)
    assert json.loads(payload)["id"] == done.stdout.strip()
    redis.call("DEL", "queues:default", "queues:default:notify")


@pytest.mark.leaves("queues:*:failed*")
def test_a_step_that_fails_stops_the_chain_and_is_caught_once(shop: Project, witness: Witness) -> None:
    code = "app.chain(step.bind('a'), step.bind('b', True), step.bind('c'), catch=step.bind('sorry')).dispatch()"
    shop.python(f"from jobs import *\n{code}")
    shop.work_off()
    assert witness.lines == ["step a 1", "step b 1", "step b 2", "step sorry 1"]


@pytest.mark.leaves("queues:*:failed*")
def test_a_failed_step_continues_the_chain_when_it_is_retried(shop: Project, witness: Witness, redis: Client) -> None:
    code = "app.chain(step.bind('a', True), step.bind('b'), catch=step.bind('sorry')).dispatch()"
    shop.python(f"from jobs import *\n{code}")
    shop.work_off()
    assert len(failed(redis)) == 1
    (shop.root / "mended").touch()
    shop.allowed.add("mended")
    assert shop.qd("failed", "retry", "--all").returncode == 0
    shop.work_off()
    assert witness.lines == ["step a 1", "step a 2", "step sorry 1", "step a 1", "step b 1"]


def test_a_delay_counts_from_when_the_one_before_has_succeeded(shop: Project, witness: Witness, redis: Client) -> None:
    code = "app.chain(slow.bind(0.3), step.using(delay=30, retry_for=60).bind('b')).dispatch()"
    shop.python(f"from jobs import *\n{code}")
    sent, work = time.time(), shop.work("-w", "1")
    witness.wait("end")
    text, due = eventually(lambda: redis.call("ZRANGE", "queues:default:delayed", 0, -1, "WITHSCORES"))
    assert sent + 30.3 <= float(due) <= time.time() + 30.3
    assert json.loads(text)["retryUntil"] == pytest.approx(float(due) + 60, abs=2)  # whole seconds, by another clock
    redis.call("ZADD", "queues:default:delayed", "XX", 0, text)
    witness.wait("step b")
    work.stop()


def test_all_of_it_runs_here_and_now(shop: Project, witness: Witness) -> None:
    shop.python(
        """
        from jobs import *
        app.chain(step.bind('a'), step.bind('b')).run()
        try:
            app.chain(step.bind('c', True), step.bind('d'), catch=step.bind('sorry')).run()
        except ValueError:
            note("raised")
        """
    )
    assert witness.lines == ["step a 1", "step b 1", "step c 1", "step sorry 1", "raised"]


def test_a_chain_waits_for_the_commit(shop: Project, redis: Client) -> None:
    shop.python(
        """
        from jobs import *
        waiting = []
        app._transactions.append(lambda act: waiting.append(act) or True)
        app.chain(step.bind('a'), step.using(after_commit=True).bind('b')).dispatch()
        assert app.queue("default").size() == 0
        waiting.pop()()
        assert app.queue("default").size() == 1
        app.queue("default").clear()
        """
    )


@pytest.mark.leaves("qd:batch:*")
def test_links_and_callbacks_are_signed_when_they_are_made(shop: Project, witness: Witness) -> None:
    """Workers and the server rewrite times, and the fields that depend on them: these are not signed."""
    shop.config('[signing]\nkeys = ["k1:0123456789abcdef0123456789abcdef"]\nrequire = true\n')
    code = "app.chain(step.bind('a'), step.bind('b'), step.bind('c')).dispatch()"
    then = "app.batch(step.bind('d'), then=step.using(retry_for=60).bind('e')).dispatch()"
    shop.python(f"from jobs import *\n{code}\n{then}")
    shop.work_off()
    assert sorted(witness.lines) == [f"step {name} 1" for name in "abcde"]


STRANGE = {  # and whether the job runs, or is kept as malformed
    '"chain":[["default",0,"no JSON"]]': True,
    '"chain":[["default",0,"{}"],["default",0,"[]"]],"catch":[["default",0,""]]': True,
    '"chain":[["default",-5,"{}"]]': False,
    '"batch":"nobody knows it"': True,
    '"batch":"","after":"","unique":"","key":""': True,
    '"result":-1': False,
    '"chain":[["",1e300,"x"]]': False,
    '"chain":[["default:owners",0,"x"]],"catch":[["default:notify",0,"x"]],"batch":"B:pending"': True,
}


@pytest.mark.leaves("queues:*", "qd:job:*", "qd:batch:*")
@pytest.mark.parametrize("ties", STRANGE)
@pytest.mark.parametrize("name", ["quick", "boom"])
def test_what_anybody_ties_to_a_job_ends_no_worker(
    shop: Project, witness: Witness, redis: Client, ties: str, name: str
) -> None:
    redis.call("SADD", "qd:batch:B:pending", "u")
    raw = make(name, b"{}", created_at=int(time.time())).replace(b',"id":', b',"qd":{%b},"id":' % ties.encode())
    push_raw(redis, raw, make("quick", b'{"n":7}', created_at=int(time.time())))
    work = shop.work_off()
    assert not work.matches("worker.died")
    assert witness.starting("quick 7")
    if STRANGE[ties]:
        assert len(witness.starting(name)) == 2
    else:
        assert len(witness.starting("")) == 1
        assert work.matches("job.malformed")


def test_a_step_that_is_cancelled_ends_the_chain_and_is_caught(shop: Project, witness: Witness) -> None:
    code = "app.chain(step.using(delay=600).bind('a'), step.bind('b'), catch=step.bind('sorry')).dispatch()"
    id = shop.python(f"from jobs import *\nprint({code}.id)").stdout.strip()
    assert shop.qd("cancel", id).returncode == 0
    shop.work_off()
    assert witness.lines == ["step sorry 1"]
