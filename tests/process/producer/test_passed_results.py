"""Results through the real worker: passed along a chain, called and waited for, read in the callback of a batch."""

from __future__ import annotations

import json
import time

import pytest

from qd.payload.build import make
from qd.payload.format import read
from tests.support.payloads import failed, push_raw
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
SHOP = (
    JOBS
    + """
from datetime import date
from typing import Any

@app.job("first", tries=5, backoff=0)
def first(what: str = "") -> Any:
    note("first", current_job().attempt)
    return {"object": object(), "large": "x" * 1_100_000, "deep": [[[[[[[[[[[[1]]]]]]]]]]]], "text": "nine"}.get(what, 7)

@app.job("first.async")
async def first_async() -> object:
    return object()

@app.job("day")
def day() -> date:
    return date(2031, 1, 2)

@app.job("second", tries=2, backoff=0)
def second(number: int, more: list[str], *, fails: bool = False) -> str:
    note("second", number, *more, current_job().attempt)
    if fails and not os.path.exists("mended"):
        raise ValueError("this job does not work")
    return f"{number + 1}"

@app.job("third")
def third(text: str | None) -> None:
    note("third", text)

@app.job("late")
def late(day: date) -> None:
    note("late", day.year)

@app.job("caller")
def caller(n: int) -> None:
    try:
        second.using(queue="nobody").bind(n, []).call(timeout=0)
    except TimeoutError as error:
        note("caller", type(error).__name__)

def send(what, more=("a", "b"), **options):
    calls = [first.bind(what), second.link(list(more), **options), third.link()]
    return app.chain(*calls, catch=third.bind("sorry"), pass_results=True).dispatch()
"""
)
KEYS = '[signing]\nkeys = ["2026a:an-old-secret-of-ours"]'


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP)


@pytest.fixture(params=["", KEYS], ids=["unsigned", "signed"])
def keyed(shop: Project, request: pytest.FixtureRequest) -> Project:
    shop.config(request.param)
    return shop


def test_each_job_gets_the_result_of_the_one_before(keyed: Project, witness: Witness) -> None:
    keyed.python("from jobs import *\nsend('')")
    keyed.work_off()
    assert witness.lines == ["first 1", "second 7 a b 1", "third 8"]


def test_a_value_arrives_as_the_declared_type(shop: Project, witness: Witness) -> None:
    shop.python("from jobs import *\napp.chain(day.bind(), late.link(), pass_results=True).dispatch()")
    shop.work_off()
    assert witness.lines == ["late 2031"]


@pytest.mark.leaves("queues:*:failed*")
def test_a_failed_job_keeps_its_value_for_its_retry(keyed: Project, witness: Witness, redis: Client) -> None:
    keyed.python("from jobs import *\nsend('', fails=True)")
    keyed.work_off()
    (keyed.root / "mended").touch()
    keyed.allowed.add("mended")
    assert keyed.qd("failed", "retry", "--all").returncode == 0
    keyed.work_off()
    tried = ["second 7 a b 1", "second 7 a b 2", "third sorry", "second 7 a b 1"]
    assert witness.lines == ["first 1", *tried, "third 8"]


@pytest.mark.leaves("queues:*:failed*")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (
            "object",
            "the next job of the chain takes the result of job 'first', and JSON cannot carry what the job returned",
        ),
        ("large", "the result of job 'first' cannot be passed on: a payload of job 'second' has 11"),
        ("deep", "the result of job 'first' cannot be passed on: a payload of job 'second' is nested"),
    ],
)
def test_a_result_that_cannot_be_passed_on_fails_its_job(
    shop: Project, witness: Witness, redis: Client, what: str, reason: str
) -> None:
    limited = (shop.root / "qd.toml").read_text().replace("[qd]\n", "[qd]\nmax_payload = '1M'\nmax_depth = 8\n")
    (shop.root / "qd.toml").write_text(limited)
    shop.python(f"from jobs import *\nsend('{what}')")
    shop.work_off()
    assert witness.lines == ["first 1", "third sorry"]  # it is not tried again: the result would be the same
    ((record, payload),) = failed(redis)
    assert (record["error"], record["job"]) == ("NoResult", "first")
    assert record["reason"].startswith(reason)
    assert read(payload).qd is not None


@pytest.mark.leaves("queues:*:failed*")
@pytest.mark.parametrize("mode", ["1", "8"], ids=["one job", "several jobs"])
def test_an_async_job_fails_the_same_way(shop: Project, redis: Client, mode: str) -> None:
    shop.python("from jobs import *\napp.chain(first_async.bind(), third.link(), pass_results=True).dispatch()")
    shop.work_off("--concurrency", mode)
    assert [record["error"] for record, _ in failed(redis)] == ["NoResult"]


@pytest.mark.leaves("queues:*:failed*")
def test_a_result_of_another_type_fails_the_next_job(shop: Project, witness: Witness, redis: Client) -> None:
    shop.python("from jobs import *\nsend('text')")
    shop.work_off()
    assert witness.lines == ["first 1", "third sorry"]
    ((record, _),) = failed(redis)
    assert (record["error"], record["job"]) == ("WrongType", "second")
    assert "argument 'number'" in record["reason"] or "parameter 'number'" in record["reason"]


@pytest.mark.leaves("queues:*:failed*")
def test_a_job_whose_result_was_not_passed_on_fails(shop: Project, witness: Witness, redis: Client) -> None:
    """As when a worker of an older qd has run the job before it."""
    raw = make("third", b"{}", created_at=int(time.time())).replace(b',"id":', b',"qd":{"takes":"u text"},"id":')
    push_raw(redis, raw)
    shop.work_off()
    ((record, _),) = failed(redis)
    assert (record["error"], witness.lines) == ("NoResult", [])
    assert "its argument 'text', the result of the job before it, was not passed on" in record["reason"]


@pytest.mark.leaves("queues:*:failed*")
@pytest.mark.parametrize("change", ["takes", "uuid", "data"])
def test_a_worker_signs_no_link_that_was_changed(shop: Project, witness: Witness, redis: Client, change: str) -> None:
    shop.config(KEYS)
    shop.python("from jobs import *\nsend('')")
    (raw,) = redis.call("LRANGE", "queues:default", 0, -1)
    link = json.loads(raw)["qd"]["chain"][0][2]
    uuid = json.loads(raw)["uuid"]
    changed = {
        "takes": link.replace(f"{uuid} number", f"{uuid} fails"),
        "uuid": link.replace(uuid, "6a0f7c0e-2a3b-4c5d-8e9f-000000000000"),
        "data": link.replace('"a"', '"z"'),
    }[change]
    assert changed != link
    wrong = raw.replace(json.dumps(link)[1:-1].encode(), json.dumps(changed)[1:-1].encode())
    assert wrong != raw
    redis.call("LSET", "queues:default", 0, wrong)
    shop.work_off()
    assert witness.lines == ["first 1"]  # nobody knows whose `catch` that is
    ((record, _),) = failed(redis)
    assert (record["error"], record["job"]) == ("SignatureRefused", "second")


@pytest.mark.leaves("queues:nobody*")
def test_a_job_that_waits_for_a_job_warns_once(shop: Project, witness: Witness) -> None:
    shop.python("from jobs import *\napp.dispatch(*[caller.bind(n) for n in range(3)])")
    work = shop.work_off()
    assert witness.lines == ["caller ResultTimeout"] * 3
    assert len([line for line in work.lines if "job 'caller' waits for job 'second'" in line]) == 1


@pytest.mark.leaves("qd:batch:*", "qd:job:*")
def test_many_results_of_a_batch_come_in_order(shop: Project, witness: Witness) -> None:
    batch = "app.batch(*[second.bind(n, []) for n in range(2500)]).using(result_ttl=60).dispatch()"
    id = shop.python(f"from jobs import *\nprint({batch}.id)").stdout.strip()
    shop.work_off()
    code = f"print(app.batch_of('{id}').results(second) == [str(n + 1) for n in range(2500)])"
    assert shop.python(f"from jobs import *\n{code}").stdout == "True\n"
