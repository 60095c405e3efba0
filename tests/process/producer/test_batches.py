"""Batches through the real worker: counted, called back, cancelled, added to from inside."""

from __future__ import annotations

import json

import pytest

from tests.support.payloads import failed
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:batch:*", "queues:*:failed*")]
SHOP = (
    JOBS
    + """
from qd.events import JobRetryRequested
from qd.middleware import SkipIfBatchCancelled

@app.job("part")
def part(n: int, fails: bool = False) -> None:
    note("part", n)
    if fails and not os.path.exists("mended"):
        raise ValueError("this part does not work")

@app.job("called")
def called(what: str) -> None:
    batch = app.current_batch().look()
    note("called", what, batch.total, batch.pending, batch.failed)

@app.job("more")
def more(depth: int) -> None:
    note("more", depth)
    if depth:
        app.current_batch().add(*[more.bind(depth - 1) for _ in range(2)])

@app.job("wanted", middleware=[SkipIfBatchCancelled()])
def wanted(n: int) -> None:
    note("wanted", n)

@app.job("watch")
def watch() -> None:
    note("watch", app.current_batch().cancelled)

CALLED = {"then": called.bind("then"), "catch": called.bind("catch"), "finally_": called.bind("finally")}
"""
)
KILLED = """
from qd.drivers.keyspace import records as batches

@app.job("bulk")
def bulk() -> None:
    batches.CHUNK = 2  # jobs that are sent in one call
    if not os.path.exists("killed"):
        call = batches.KeptBatches._call
        def call_and_die(*given):
            call(*given)
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        batches.KeptBatches._call = call_and_die
    app.current_batch().add(*[part.bind(n) for n in range(3)])
"""


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP)


def send(shop: Project, code: str) -> str:
    """The batch's id."""
    return shop.python(f"from jobs import *\nbatch = {code}\nprint(batch.id)").stdout.strip()


def ask(shop: Project, id: str, what: str) -> str:
    return shop.python(f"from jobs import *\nbatch = app.batch_of({id!r})\nprint({what})").stdout.strip()


def retry(shop: Project, redis: Client) -> None:
    """The one that has failed, after its fault was mended."""
    assert len(failed(redis)) == 1
    (shop.root / "mended").touch()
    shop.allowed.add("mended")
    assert shop.qd("failed", "retry", "--all").returncode == 0
    shop.work_off()


LOOK = "batch.name, batch.total, batch.pending, batch.failed, batch.progress, batch.finished, batch.cancelled"


def test_then_and_finally_follow_when_all_have_succeeded(shop: Project, witness: Witness) -> None:
    id = send(shop, "app.batch(*[part.bind(n) for n in range(20)], name='import', **CALLED).dispatch()")
    assert ask(shop, id, LOOK) == "import 20 20 0 0 False False"
    work = shop.work("-w", "4")
    witness.wait("called then")
    witness.wait("called finally")
    assert sorted(witness.starting("part")) == sorted(f"part {n}" for n in range(20))
    assert sorted(witness.starting("called")) == ["called finally 20 0 0", "called then 20 0 0"]
    assert ask(shop, id, LOOK) == "import 20 0 0 100 True False"
    work.stop()


def test_a_failure_cancels_and_what_runs_can_see_it(shop: Project, witness: Witness) -> None:
    id = send(shop, "app.batch(part.bind(1, True), watch.bind(), **CALLED).dispatch()")
    shop.work_off()
    assert witness.lines == ["part 1", "watch True", "called catch 2 0 1", "called finally 2 0 1"]
    assert ask(shop, id, LOOK) == "2 0 1 100 True True"


WAIT = """
from jobs import *
try:
    print(app.batch_of("{id}").result({timeout}))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_it_says_how_it_ended_and_is_waited_for(shop: Project, witness: Witness) -> None:
    def wait(id: str, timeout: float) -> str:
        return shop.python(WAIT.format(id=id, timeout=timeout)).stdout.strip()

    well, badly = [send(shop, f"app.batch(part.bind(1, {fails}), part.bind(2)).dispatch()") for fails in (False, True)]
    assert ask(shop, badly, "batch.status()") == "running"
    text = f"ResultTimeout batch {well} has not finished within 0.01 s: 2 jobs left, still running"
    assert wait(well, 0.01) == text
    work = shop.work()
    assert (wait(well, 60), ask(shop, well, "batch.status()")) == ("None", "done")
    assert wait(badly, 60) == f"JobFailedError batch {badly} has failed: BatchFailed: 1 of 2 jobs of the batch failed"
    assert ask(shop, badly, "batch.status()") == "failed"
    assert ask(shop, "no-such-one", "batch.status()") == "unknown"
    assert len(witness.starting("part")) == 4
    work.stop()


def test_failures_that_are_allowed_do_not(shop: Project, witness: Witness) -> None:
    send(shop, "app.batch(part.bind(1, True), watch.bind(), allow_failures=True, **CALLED).dispatch()")
    shop.work_off()
    assert witness.lines == ["part 1", "watch False", "called catch 2 0 1", "called finally 2 0 1"]


def test_then_comes_when_what_has_failed_is_retried_with_success(
    shop: Project, witness: Witness, redis: Client
) -> None:
    send(shop, "app.batch(part.bind(1, True), part.bind(2), allow_failures=True, **CALLED).dispatch()")
    shop.work_off()
    retry(shop, redis)
    assert witness.lines[-2:] == ["part 1", "called then 2 0 0"]
    assert len(witness.starting("called")) == 3


def test_jobs_add_jobs_from_inside(shop: Project, witness: Witness) -> None:
    send(shop, "app.batch(more.bind(3), **CALLED).dispatch()")
    work = shop.work("-w", "4")
    witness.wait("called then")
    witness.wait("called finally")
    assert len(witness.starting("more")) == 15
    assert sorted(witness.starting("called")) == ["called finally 15 0 0", "called then 15 0 0"]
    work.stop()


@pytest.mark.leaves("queues:*:deaths")
def test_a_job_that_is_killed_while_it_adds_adds_again_and_the_batch_ends(shop: Project, witness: Witness) -> None:
    shop.jobs(SHOP + KILLED)
    shop.allowed.add("killed")
    id = send(shop, "app.batch(bulk.bind(), **CALLED).dispatch()")
    shop.work_off()
    assert ask(shop, id, LOOK) == "6 0 0 100 True False"
    assert sorted(witness.starting("part")) == ["part 0", "part 0", "part 1", "part 1", "part 2"]
    assert sorted(witness.starting("called")) == ["called finally 6 0 0", "called then 6 0 0"]


def test_a_batch_is_cancelled_by_hand(shop: Project, witness: Witness) -> None:
    id = send(shop, "app.batch(watch.bind(), finally_=called.bind('finally')).dispatch()")
    assert ask(shop, id, "batch.cancel(), batch.cancel(), batch.cancelled") == "True False True"
    shop.work_off()
    assert witness.lines == ["watch True", "called finally 1 0 0"]


def test_jobs_that_are_not_wanted_any_more_are_skipped_and_then_is_not_sent(shop: Project, witness: Witness) -> None:
    id = send(
        shop, "app.batch(wanted.bind(1), part.bind(1, True), wanted.bind(2), wanted.bind(3), **CALLED).dispatch()"
    )
    shop.work_off()
    assert witness.lines == ["wanted 1", "part 1", "called catch 4 0 1", "called finally 4 0 1"]
    assert ask(shop, id, LOOK) == "4 0 1 100 True True"


def test_a_skipped_job_is_missed_when_the_failed_one_is_retried(shop: Project, witness: Witness, redis: Client) -> None:
    send(shop, "app.batch(part.bind(1, True), wanted.bind(2), **CALLED).dispatch()")
    shop.work_off()
    retry(shop, redis)
    assert witness.lines == ["part 1", "called catch 2 0 1", "called finally 2 0 1", "part 1"]


def test_all_that_has_failed_of_a_batch_is_retried(shop: Project, witness: Witness, redis: Client) -> None:
    parts = "part.bind(1, True), part.using(queue='other').bind(2, True), part.bind(3), watch.bind()"
    id = send(shop, f"app.batch({parts}, then=called.bind('then')).dispatch()")
    shop.python("from jobs import *\npart.dispatch(9, True)")  # of no batch
    shop.work_off("default", "other")
    assert ask(shop, id, LOOK) == "4 0 2 100 True True"
    (shop.root / "mended").touch()
    shop.allowed.add("mended")
    hears = "app.on(JobRetryRequested)((retries := []).append) and batch"
    attempts = (
        f"({hears}).retry_failed(), batch.cancelled, batch.retry_failed(), *sorted(event.queue for event in retries)"
    )
    assert ask(shop, id, attempts) == "2 False 0 default other"
    assert [record["job"] for record, _ in failed(redis)] == ["part"]
    shop.work_off("default", "other")
    assert sorted(witness.lines[-3:]) == ["called then 4 0 0", "part 1", "part 2"]


@pytest.mark.parametrize("way", ["command", "handle"])
def test_a_batch_whose_failed_job_was_forgotten_says_that_it_cannot_succeed(
    shop: Project, witness: Witness, redis: Client, way: str
) -> None:
    id = send(shop, "app.batch(part.bind(1, True), part.bind(2, True), then=called.bind('then')).dispatch()")
    shop.work_off()
    (first, _), _ = failed(redis)
    assert shop.qd("failed", "forget", first["id"]).returncode == 0
    warning = f"batch {id}: 1 of its failed jobs cannot be retried, their records are gone: `then` will not run\n"
    if way == "command":
        done = shop.qd("failed", "retry", "--all")
        assert (done.stdout, done.stderr) == ("1 job sent again\n", f"qd: {warning}")
    else:
        done = shop.python(f"from jobs import app\nprint(app.batch_of({id!r}).retry_failed())")
        assert (done.stdout, done.stderr) == ("1\n", warning)
    assert ask(shop, id, "batch.dropped") == "1"
    (shop.root / "mended").touch()
    shop.allowed.add("mended")
    shop.work_off()
    assert ask(shop, id, "batch.dropped, batch.failed, batch.pending") == "1 1 0"
    assert "called then" not in " ".join(witness.lines)


def test_a_batch_of_nothing_has_succeeded(shop: Project, witness: Witness) -> None:
    send(shop, "app.batch(**CALLED).dispatch()")
    shop.work_off()
    assert witness.lines == ["called then 0 0 0", "called finally 0 0 0"]


def test_a_batch_waits_for_the_commit(shop: Project, redis: Client) -> None:
    shop.python(
        """
        from jobs import *
        waiting = []
        app._transactions.append(lambda act: waiting.append(act) or True)
        batch = app.batch(part.bind(1), part.using(after_commit=True).bind(2)).dispatch()
        assert app.queue("default").size() == 0
        waiting.pop()()
        assert app.queue("default").size() == batch.total == 2
        app.queue("default").clear()
        """
    )


def test_all_of_it_runs_here_and_now(shop: Project, witness: Witness) -> None:
    shop.python(
        """
        from jobs import *
        app.batch(part.bind(1), part.bind(2), then=quick.bind(1), finally_=quick.bind(2)).run()
        try:
            app.batch(part.bind(3, True), part.bind(4), then=quick.bind(3), catch=quick.bind(4)).run()
        except ValueError:
            note("raised")
        """
    )
    assert [line.rsplit(" ", 1)[0] if line[0] == "q" else line for line in witness.lines] == [
        "part 1",
        "part 2",
        "quick 1",
        "quick 2",
        "part 3",
        "quick 4",
        "raised",
    ]


def test_a_job_without_a_batch_gets_an_error(shop: Project) -> None:
    shop.python("from jobs import *\ncalled.dispatch('x')")
    work = shop.work_off()
    work.wait_line("job.failed.*UnknownBatch: job 'called' belongs to no batch")


def test_two_thousand_jobs_are_counted_exactly(shop: Project, witness: Witness) -> None:
    calls = "*[part.bind(n, n % 100 == 7) for n in range(2000)]"
    id = send(shop, f"app.batch({calls}, allow_failures=True, **CALLED).dispatch()")
    work = shop.work("-w", "4", "--log-level", "warning")
    eventually(lambda: witness.starting("called finally"), 60, every=0.2)
    assert ask(shop, id, LOOK) == "2000 0 20 100 True False"
    assert len(witness.starting("part")) == 2000
    work.stop()
    assert sorted(line.split()[1] for line in witness.starting("called")) == ["catch", "finally"]


def test_a_waiting_job_that_is_cancelled_has_failed(shop: Project, witness: Witness, redis: Client) -> None:
    id = send(shop, "app.batch(part.using(delay=600).bind(1), part.bind(2), **CALLED).dispatch()")
    (waiting,) = redis.call("ZRANGE", "queues:default:delayed", 0, -1)
    assert shop.qd("cancel", json.loads(waiting)["id"]).returncode == 0
    assert ask(shop, id, LOOK) == "2 1 1 50 False True"
    shop.work_off()
    assert sorted(witness.lines) == ["called catch 2 0 1", "called finally 2 0 1", "part 2"]


def test_a_cancelled_batch_has_no_then_whatever_the_middleware_around_returns(shop: Project, witness: Witness) -> None:
    """One that returned nothing made a skipped job a success."""
    shop.jobs(SHOP + "\n@app.middleware\ndef logged(job, call_next):\n    call_next()\n")
    code = "app.batch(*[wanted.bind(n) for n in range(2)], **CALLED).dispatch().cancel()"
    shop.python(f"from jobs import *\n{code}")
    shop.work_off()
    assert witness.lines == ["called finally 2 0 0"]
