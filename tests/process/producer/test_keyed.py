"""Keyed and unique jobs with the real qd work: a cancelled job never runs, a moved job runs once, keys are values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.payloads import push_laravel
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- keyed and unique jobs


Projects = Callable[..., Project]

SHOP = (
    JOBS
    + """
@app.job("remind", tries=3)
def remind(key: str, id: str) -> None:
    note("ran", key, id)
    if id.endswith("r") and current_job().attempt == 1:
        raise ValueError("once more")

@app.job("charge", unique="order:{order}", tries=3, backoff=0.01)
def charge(order: int, how: str = "well") -> None:
    note("charge", order, how, current_job().attempt)
    if how == "badly":
        raise ValueError("never works")
    if how == "killed" and current_job().attempt + os.path.exists("killed") == 1:
        open("killed", "w").close()
        os.kill(os.getpid(), 9)

@app.job("rests", unique="rests", unique_for=20, tries=2, backoff=3600)
def rests() -> None:
    raise ValueError("tried again in an hour")

@app.job("hangs", unique="hangs", unique_for=20, tries=2, backoff=3600, timeout=0.6)
def hangs() -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@app.job("late", unique="{order}", unique_until="start")
def late(order: int) -> None:
    note("late", order)
    if order < 3:
        late.dispatch(order + 1)
"""
)

PRODUCE = """
import json, os, random
from jobs import app, remind

which = int(os.environ["WHICH"])
choice = random.Random(which)
outcomes = []
for n in range(120):
    key = f"k{choice.randrange(6)}"
    keyed = app.keyed(remind, key)
    match choice.randrange(5):
        case 0 | 1 | 2:
            id = f"{which}.{n}" + choice.choice(["", "r"])
            remind.using(key=key, delay=choice.choice([0, 0.003, 0.02, 600])).dispatch(key, id)
            outcomes.append(["sent", key, id])
        case 3:
            keyed.reschedule(choice.choice([0, 0.01, 600]))
        case _:
            due = keyed.due()
            outcomes.append(["cancelled" if keyed.cancel() else "not there", key, ""])
print(json.dumps(outcomes))
"""


QUIET = """
local q = 'queues:default'
local busy = redis.call('LLEN', q) + redis.call('ZCARD', q .. ':reserved')
local soon = redis.call('ZCOUNT', q .. ':delayed', '-inf', redis.call('TIME')[1] + 200)
return busy + soon == 0 and redis.call('HLEN', q .. ':keyed') == redis.call('ZCARD', q .. ':delayed') and 1 or 0
"""


def quiet(redis: Client) -> bool:
    """Nothing is ready, nothing runs, and what waits waits for minutes: seen in one look, as jobs move meanwhile."""
    return bool(redis.call("EVAL", QUIET, 0))


def counts(redis: Client) -> tuple[int, int]:
    return redis.call("HLEN", "queues:default:keyed"), redis.call("ZCARD", "queues:default:delayed")


def test_answers_are_true_while_workers_run_and_producers_move_and_cancel(project: Projects, redis: Client) -> None:
    """Three producers, two workers, retries: nothing runs twice, and as much is left over as the answers say."""
    shop = project(SHOP)
    witness = Witness(shop)
    work = shop.work("-w", "2")
    work.wait_line("master.ready")
    with ThreadPoolExecutor(3) as threads:
        outputs = list(threads.map(lambda which: shop.python(PRODUCE, WHICH=str(which)).stdout, range(3)))
    outcomes = [line for text in outputs for line in json.loads(text)]
    eventually(lambda: quiet(redis), 20)
    sent = {id for what, _, id in outcomes if what == "sent"}
    times = Counter(line.split()[2] for line in witness.starting("ran"))
    waiting = counts(redis)[0]
    assert set(times) <= sent
    assert {id: count for id, count in times.items() if count != (2 if id.endswith("r") else 1)} == {}
    cancelled = sum(what == "cancelled" for what, _, _ in outcomes)
    assert len(times) + cancelled + waiting <= len(sent)
    assert times  # how many is a matter of speed: the rest was replaced while it waited
    assert cancelled > 3
    called_off = [shop.qd("cancel", "--job", "remind", "--key", f"k{n}").returncode for n in range(6)]
    assert called_off.count(0) == waiting
    work.stop()


@pytest.mark.leaves("queues:default:failed", "queues:default:failed_at", "queues:default:deaths")
def test_a_lock_is_freed_however_the_job_ends_and_kept_while_it_is_tried_again(
    project: Projects, redis: Client
) -> None:
    shop = project(SHOP)
    shop.allowed.add("killed")
    witness = Witness(shop)
    send = """
        from jobs import charge
        print(*[charge.dispatch(order, how).id for order, how in {orders}])
    """

    def ids(*orders: tuple[int, str]) -> list[str]:
        return shop.python(send.format(orders=orders)).stdout.split()

    first = ids((1, "well"), (2, "badly"), (3, "killed"))
    assert ids((1, "well"), (2, "badly"), (3, "killed")) == first
    assert redis.call("LLEN", "queues:default") == 3
    work = shop.work("-w", "1")
    witness.wait("charge 1")
    witness.wait("charge 2", 3)
    witness.wait("charge 3", 2)
    eventually(lambda: not redis.call("KEYS", "qd:unique:*"), 20, what="no lock left")
    assert len(set(ids((1, "well"), (2, "well"), (3, "well"))) | set(first)) == 6
    witness.wait("charge 2 well")
    eventually(lambda: not redis.call("KEYS", "qd:unique:*"), 20)
    work.stop()


@pytest.mark.leaves("qd:unique:*", "queues:default:delayed", "queues:default:deaths")
@pytest.mark.parametrize(("job", "put_back"), [("rests", "job.released"), ("hangs", "job.requeued .*reason=timeout")])
def test_a_lock_outlasts_a_backoff_that_is_longer_than_unique_for(
    project: Projects, redis: Client, job: str, put_back: str
) -> None:
    """It was freed after unique_for while its job waited, and a second one was sent."""
    shop = project(SHOP)
    send = f"from jobs import {job}\nprint({job}.dispatch().id)"
    first = shop.python(send).stdout
    work = shop.work("-w", "1")
    work.wait_line(put_back)
    work.stop()
    assert redis.call("ZCARD", "queues:default:delayed") == 1
    assert 3500 < redis.call("TTL", f"qd:unique:{job}:{job}") <= 3600 * 1.1 + 20
    assert shop.python(send).stdout == first


def test_until_the_start_lets_the_next_wait_while_one_runs(project: Projects) -> None:
    shop = project(SHOP)
    witness = Witness(shop)
    assert (
        len(set(shop.python("from jobs import late\nprint(*[late.dispatch(1).id for _ in range(3)])").stdout.split()))
        == 1
    )
    work = shop.work("-w", "1")
    witness.wait("late 3")
    work.stop()
    assert witness.starting("late") == ["late 1", "late 2", "late 3"]


# -- keys are made of values, with other hash seeds and for jobs from PHP too


KEYED = (
    JOBS
    + """
from dataclasses import dataclass
from datetime import datetime
from qd.events import JobFailed, JobProcessing
from qd.middleware import WithoutOverlapping

@app.job("tagged", unique="{tags}")
def tagged(tags: set[str]) -> None: ...

@app.job("measured", unique="{m}", middleware=[WithoutOverlapping("{m}", release_after=0.02)])
def measured(m: float) -> None:
    note("measured", current_job().id)
    held()

@dataclass
class Line:
    sku: str

    def __post_init__(self):
        note("made", self.sku)

def looks(job, call_next):
    note("middleware", job.arguments)
    return call_next()

@app.on(JobProcessing)
@app.on(JobFailed)
def heard(event):
    if event.job.name == "looked":
        note(type(event).__name__, event.job.arguments)

@app.job("looked", tries=1, middleware=[looks])
def looked(line: Line, when: datetime, note: str = "none") -> None:
    if note == "fails":
        raise ValueError
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=KEYED)


def test_a_unique_job_of_a_set_is_sent_once_whatever_the_order_of_the_set(shop: Project, redis: Client) -> None:
    send = "from jobs import tagged; tagged.dispatch(set('abcdefgh')); print(','.join(set('abcdefgh')))"
    orders = {shop.python(send, PYTHONHASHSEED=seed).stdout for seed in ("1", "2", "3")}
    assert len(orders) > 1
    assert redis.call("LLEN", "queues:default") == 1
    shop.work_off()


def test_jobs_of_one_number_do_not_overlap_however_it_is_written(
    shop: Project, redis: Client, witness: Witness
) -> None:
    shop.python("from jobs import measured; measured.dispatch(1.0); measured.dispatch(1)")
    assert redis.call("LLEN", "queues:default") == 1
    push_laravel(redis, "measured", {"m": 1})
    work = ready(shop, workers=2)
    work.wait_line("another job of measured:1.0 is running")
    witness.go()
    work.wait_line("job.done", 30, count=2)
    work.stop()
    assert len(witness.starting("measured")) == 2


@pytest.mark.leaves("queues:default:failed*")
def test_middleware_and_listeners_see_the_values_that_the_function_gets(
    shop: Project, redis: Client, witness: Witness
) -> None:
    given: dict[str, object] = {"line": {"sku": "a"}, "when": "2026-11-22T12:00:00Z"}
    push_laravel(redis, "looked", given)
    push_laravel(redis, "looked", {**given, "note": "fails"})
    shop.work_off()
    when = "datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.timezone.utc)"
    fields = [f"{{'line': Line(sku='a'), 'when': {when}, 'note': '{note}'}}" for note in ("none", "fails")]
    expected = [
        line for arguments in fields for line in ("made a", f"JobProcessing {arguments}", f"middleware {arguments}")
    ]
    assert witness.lines == [*expected, f"JobFailed {fields[1]}"]
