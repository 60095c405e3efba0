"""app.batch and app.chain: what is refused before anything is sent, and what the first payload of a chain contains."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from qd import ArgumentError, Call, DeclarationError, NeverSent, NotInJob, Qd, current_job
from qd.drivers.types import BatchState
from qd.errors import JobFailedError
from qd.middleware import SkipIfBatchCancelled
from qd.payload.format import Relations, read
from tests.support.fakes import FakeQd


@pytest.fixture
def step(app: FakeQd) -> Any:
    @app.job("step")
    def step(n: int, text: str = "") -> None: ...

    return step


def test_only_calls_are_accepted(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match="<job step> is not a call"):
        app.batch(step)
    with pytest.raises(ArgumentError, match="'ready' is not a call"):
        app.batch(step.bind(1), then="ready")  # type: ignore[arg-type]


def test_a_chain_cannot_be_a_job_of_a_batch(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match="<chain of step> cannot be part of another call"):
        app.batch(app.chain(step.bind(1)))


def test_a_batch_cannot_be_dispatched_with_other_jobs(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match=r"<batch of 1 job \(rows\)> cannot be part of another call"):
        app.dispatch(step.bind(1), app.batch(step.bind(2), name="rows"))


@pytest.mark.parametrize("where", ["calls", "then"])
def test_a_job_with_a_key_is_refused_in_a_batch(app: FakeQd, step: Any, where: str):
    keyed = step.using(key="order:1").bind(1)
    batch = app.batch(keyed) if where == "calls" else app.batch(step.bind(1), then=keyed)
    with pytest.raises(DeclarationError, match=r"job 'step' has key='order:1'.*remove it"):
        batch.dispatch()
    assert app.sent == []


def test_a_callback_with_a_delay_is_refused(app: FakeQd, step: Any):
    late = step.using(delay=datetime(2030, 1, 1, tzinfo=UTC)).bind(1)
    with pytest.raises(DeclarationError, match=r"job 'step' has delay=2030.* give seconds"):
        app.batch(step.bind(1), finally_=late).dispatch()


@pytest.mark.parametrize("where", ["calls", "then"])
def test_all_jobs_of_a_batch_use_one_connection(app: FakeQd, step: Any, where: str):
    other = step.using(connection="other").bind(2)
    batch = app.batch(step.bind(1), other) if where == "calls" else app.batch(step.bind(1), then=other)
    with pytest.raises(
        DeclarationError, match=r"all jobs of a batch need the same connection: job 'step' goes to 'redis', .*'other'"
    ):
        batch.dispatch()
    assert app.sent == []


def test_all_jobs_of_a_chain_use_one_connection(app: FakeQd, step: Any):
    with pytest.raises(DeclarationError, match="all jobs of a chain need the same connection"):
        app.chain(step.bind(1), step.using(connection="other").bind(2)).dispatch()
    assert app.sent == []


def test_a_job_of_another_connection_cannot_be_added(app: FakeQd, step: Any):
    with pytest.raises(DeclarationError, match="'batch B' goes to 'redis', job 'step' to 'other'"):
        app.batch_of("B").add(step.using(connection="other").bind(1))


def test_a_discarded_batch_warns(app: FakeQd, step: Any):
    with pytest.warns(NeverSent, match="<batch of 2 jobs> was never sent"):
        app.batch(step.bind(1), step.bind(2))


def test_outside_a_job_there_is_no_current_batch(app: FakeQd):
    with pytest.raises(NotInJob):
        app.current_batch()


class Running:
    """An app that can reach no server, and the batch as its jobs saw it."""

    def __init__(self) -> None:
        self.app, self.seen = Qd(), list[Any]()

        @self.app.job("row")
        def row(n: int, more: int = 0, cancel: bool = False) -> None:
            batch = self.app.current_batch()
            self.seen.append((n, batch.total, batch.pending))
            if more:
                batch.add(*[row.bind(n * 10 + one) for one in range(more)])
            if cancel:
                batch.cancel()
            if n < 0:
                raise ValueError(n)

        @self.app.job("optional", middleware=[SkipIfBatchCancelled()])
        def optional(n: int) -> None:
            self.seen.append(n)

        @self.app.job("after")
        def after(what: str) -> None:
            look = self.app.current_batch().look()
            self.seen.append((what, look.total, look.pending, look.failed, look.finished_at is not None))

        self.row, self.optional, self.after = row, optional, after

    def run(self, *calls: Call[Any], allow_failures: bool = False) -> None:
        then, catch, last = [self.after.bind(what) for what in ("then", "catch", "finally")]
        batch = self.app.batch(*calls, then=then, catch=catch, finally_=last, allow_failures=allow_failures)
        batch.run()


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setenv("QD_REDIS_URL", "unix:///nope")
    return Running()


def test_under_run_jobs_can_be_added_to_the_current_batch(running: Running):
    row = running.row
    running.run(row.bind(1, more=2), row.bind(2))
    jobs = [(1, 2, 2), (2, 4, 3), (10, 4, 2), (11, 4, 1)]
    assert running.seen == [*jobs, ("then", 4, 0, 0, False), ("finally", 4, 0, 0, True)]


def test_run_of_an_empty_batch_runs_the_callbacks(running: Running):
    running.run()
    assert running.seen == [("then", 0, 0, 0, False), ("finally", 0, 0, 0, True)]


def test_run_ends_a_batch_with_its_first_failure(running: Running):
    row = running.row
    with pytest.raises(ValueError, match="-1"):
        running.run(row.bind(-1), row.bind(2))
    assert running.seen == [(-1, 2, 2), ("catch", 2, 1, 1, False), ("finally", 2, 0, 1, True)]


def test_run_continues_if_failures_are_allowed(running: Running):
    row = running.row
    with pytest.raises(ValueError, match="-1"):
        running.run(row.bind(-1), row.bind(-2), row.bind(3), allow_failures=True)
    seen = [(-1, 3, 3), ("catch", 3, 2, 1, False), (-2, 3, 2), (3, 3, 1), ("finally", 3, 0, 2, True)]
    assert running.seen == seen


def test_run_skips_jobs_of_a_cancelled_batch(running: Running):
    running.run(running.row.bind(1, cancel=True), running.optional.bind(2))
    assert running.seen == [(1, 2, 2), ("finally", 2, 0, 0, True)]


def test_under_run_no_job_can_be_retried(running: Running):
    @running.app.job("retry")
    def retry() -> None:
        running.seen.append((running.app.current_batch().retry_failed(), current_job().relations))

    running.app.batch(then=retry.bind()).run()
    assert [count for count, _ in running.seen] == [0]


@pytest.mark.parametrize(
    ("total", "pending", "percent"), [(0, 0, 100), (3, 3, 0), (3, 1, 66), (1000, 1, 99), (3, 0, 100)]
)
def test_progress_is_rounded_down(total: int, pending: int, percent: int):
    assert BatchState("B", "", total, pending, 0, 0.0, None, None).progress == percent


# -- chains


def tied(payload: bytes) -> Relations:
    relations = read(payload).qd
    assert relations is not None
    return relations


def test_an_empty_chain_is_refused(app: FakeQd):
    with pytest.raises(ArgumentError, match=r"app.chain\(\) needs at least one job"):
        app.chain()


def test_only_calls_are_accepted_in_a_chain(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match="<job step> is not a call"):
        app.chain(step)


def test_a_chain_cannot_be_a_step_of_a_chain(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match="<chain of step> cannot be part of another call"):
        app.chain(app.chain(step.bind(1)))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"delay": datetime(2030, 1, 1, tzinfo=UTC)}, "job 'step' has delay=2030.* give seconds"),
        ({"key": "order:1"}, "job 'step' has key='order:1'.*remove it"),
    ],
)
def test_options_that_a_later_step_cannot_have_are_refused(app: FakeQd, step: Any, option: Any, message: str):
    with pytest.raises(DeclarationError, match=message):
        app.chain(step.bind(1), step.using(**option).bind(2)).dispatch()
    assert app.sent == []


def test_a_chain_that_is_too_large_is_refused(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match=r"job 'step' has .* max_payload"):
        app.chain(*[step.bind(n, "x" * 1_000_000) for n in range(20)]).dispatch()
    assert app.sent == []


def test_a_discarded_chain_warns(app: FakeQd, step: Any):
    with pytest.warns(NeverSent, match="<chain of step, step> was never sent"):
        app.chain(step.bind(1), step.bind(2))


def test_options_of_a_chain_apply_to_each_job_and_its_delay_to_the_first(app: FakeQd, step: Any):
    chain = app.chain(step.bind(1), step.bind(2)).using(queue="high", delay=60)
    chain.dispatch()
    sent = app.sent[-1]
    (link,) = tied(sent.payload).chain
    assert (sent.queue, sent.delay, link.queue, link.delay) == ("high", 60, "high", 0)


def test_only_the_first_job_of_a_chain_takes_a_lock(app: FakeQd):
    @app.job("once", unique="n:{n}")
    def once(n: int) -> None: ...

    app.chain(once.bind(1), once.bind(2)).dispatch()
    relations = tied(app.sent[-1].payload)
    assert relations.unique == "once:n:1"
    assert read(relations.chain[0].payload.encode()).qd is None


def test_a_chain_of_one_job_is_a_plain_job(app: FakeQd, step: Any):
    app.chain(step.bind(1)).dispatch()
    assert read(app.sent[-1].payload).qd is None


def test_the_error_of_a_failed_batch_names_a_batch():
    assert str(JobFailedError("7", "BatchFailed", "1 of 2")) == "batch 7 has failed: BatchFailed: 1 of 2"
    assert str(JobFailedError("7", "ValueError", "")) == "job 7 has failed: ValueError"
