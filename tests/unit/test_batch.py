"""app.batch: what is refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from qd import ArgumentError, DeclarationError, NeverSent, NotInJob
from qd.connectors.batches import BatchState
from tests.support.fakes import FakeQd


@pytest.fixture
def app() -> FakeQd:
    return FakeQd()


@pytest.fixture
def step(app: FakeQd) -> Any:
    @app.job("step")
    def step(n: int, text: str = "") -> None: ...

    return step


def test_what_is_no_call_is_refused(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match="<job step> is not a call"):
        app.batch(step)
    with pytest.raises(ArgumentError, match="'ready' is not a call"):
        app.batch(step.bind(1), then="ready")  # type: ignore[arg-type]


def test_a_chain_is_no_job_of_a_batch(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match="<chain of step> is sent by itself"):
        app.batch(app.chain(step.bind(1)))


def test_a_batch_is_not_sent_among_other_jobs(app: FakeQd, step: Any):
    with pytest.raises(ArgumentError, match=r"<batch of 1 jobs \(rows\)> is sent by itself"):
        app.dispatch(step.bind(1), app.batch(step.bind(2), name="rows"))


@pytest.mark.parametrize("where", ["calls", "then"])
def test_a_key_is_refused(app: FakeQd, step: Any, where: str):
    keyed = step.using(key="order:1").bind(1)
    batch = app.batch(keyed) if where == "calls" else app.batch(step.bind(1), then=keyed)
    with pytest.raises(DeclarationError, match=r"job 'step' has key='order:1'.*leave it out"):
        batch.dispatch()
    assert app.sent == []


def test_a_callback_at_a_moment_is_refused(app: FakeQd, step: Any):
    late = step.using(delay=datetime(2030, 1, 1, tzinfo=UTC)).bind(1)
    with pytest.raises(DeclarationError, match=r"job 'step' is to start at 2030.* give seconds"):
        app.batch(step.bind(1), finally_=late).dispatch()


@pytest.mark.parametrize("where", ["calls", "then"])
def test_all_of_it_lives_on_one_connection(app: FakeQd, step: Any, where: str):
    other = step.using(connection="other").bind(2)
    batch = app.batch(step.bind(1), other) if where == "calls" else app.batch(step.bind(1), then=other)
    with pytest.raises(
        DeclarationError, match=r"a batch lives on one connection: job 'step' goes to 'redis', .*'other'"
    ):
        batch.dispatch()
    assert app.sent == []


def test_a_chain_lives_on_one_connection_too(app: FakeQd, step: Any):
    with pytest.raises(DeclarationError, match="a chain lives on one connection"):
        app.chain(step.bind(1), step.using(connection="other").bind(2)).dispatch()
    assert app.sent == []


def test_a_job_of_another_connection_is_not_added(app: FakeQd, step: Any):
    with pytest.raises(DeclarationError, match="'batch B' goes to 'redis', job 'step' to 'other'"):
        app.batch_of("B").add(step.using(connection="other").bind(1))


def test_a_batch_that_is_dropped_says_so(app: FakeQd, step: Any):
    with pytest.warns(NeverSent, match="<batch of 2 jobs> was never sent"):
        app.batch(step.bind(1), step.bind(2))


def test_outside_a_job_there_is_no_batch_in_hand(app: FakeQd):
    with pytest.raises(NotInJob):
        app.current_batch()


@pytest.mark.parametrize(
    ("total", "pending", "percent"), [(0, 0, 100), (3, 3, 0), (3, 1, 66), (1000, 1, 99), (3, 0, 100)]
)
def test_progress_is_rounded_down(total: int, pending: int, percent: int):
    assert BatchState("B", "", total, pending, 0, 0.0, None, None).progress == percent
