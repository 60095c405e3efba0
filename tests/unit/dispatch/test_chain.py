"""app.chain: what is refused before anything is sent, and what the first payload contains."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from qd import ArgumentError, DeclarationError, NeverSent
from qd.payload.format import Relations, read
from tests.support.fakes import FakeQd


@pytest.fixture
def step(app: FakeQd) -> Any:
    @app.job("step")
    def step(n: int, text: str = "") -> None: ...

    return step


def tied(payload: bytes) -> Relations:
    relations = read(payload).qd
    assert relations is not None
    return relations


def test_an_empty_chain_is_refused(app: FakeQd):
    with pytest.raises(ArgumentError, match=r"app.chain\(\) needs at least one job"):
        app.chain()


def test_only_calls_are_accepted(app: FakeQd, step: Any):
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
