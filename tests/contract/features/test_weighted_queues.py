"""Weighted queues: while all queues have jobs, a worker serves them in the proportion of their weights."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.contract.features.conftest import Cell
from tests.contract.kinds import KINDS, Tried, ready
from tests.support.waiting import eventually

FEATURE = "Weighted queues"

WEIGHTS = {"high": 5, "default": 3, "low": 1}
SHARES = {"high": 35, "default": 21, "low": 7}  # that a worker takes in a row


def fill(tried: Tried, count: int) -> None:
    for place, queue in enumerate(WEIGHTS):
        tried.push(*range(1000 * place, 1000 * place + count), queue=queue)


def started(tried: Tried) -> list[str]:
    """The queues of the jobs, in the order in which they started."""
    names = list(WEIGHTS)
    return [names[int(note[1]) // 1000] for note in tried.shop.noted("S")]


def test_queues_are_served_in_proportion(tried: Tried, cell: Cell) -> None:
    assert cell == "works"
    check_proportion(tried)


# Elsewhere the worker does the same, or refuses the option.
LANES = [
    pytest.param(kind, marks=pytest.mark.xdist_group(kind.name)) for kind in KINDS if kind.name in ("redis", "cluster")
]


@pytest.mark.parametrize("kind", LANES, ids=lambda kind: kind.name, indirect=True)
@pytest.mark.parametrize("options", [("--prefetch", "1"), ("--concurrency", "8")], ids=["one", "several"])
def test_the_proportion_holds_for_any_number_of_jobs_in_a_turn(tried: Tried, options: tuple[str, ...]) -> None:
    check_proportion(tried, *options)


def check_proportion(tried: Tried, *options: str) -> None:
    each, first = (600, 1000) if tried.kind.many > 60 else (100, 160)  # SQS takes 20 ms for each
    fill(tried, each)
    work = ready(tried.shop, *[f"{queue}={weight}" for queue, weight in WEIGHTS.items()], *options)
    assert work.matches('master.started .* queues="high=5,default=3,low=1"')
    eventually(lambda: len(tried.shop.noted("S")) >= first, 90, what="the first part")
    work.stop()
    counts = Counter(started(tried)[:first])
    for queue, weight in WEIGHTS.items():
        expected = first * weight / 9
        assert abs(counts[queue] - expected) <= max(0.1 * expected, SHARES[queue] if each < 600 else 0), counts


def test_an_empty_queue_gives_its_share_to_the_others(tried: Tried, cell: Cell) -> None:
    assert cell == "works"
    tried.push(*range(2000, 2050), queue="low")
    work = ready(tried.shop, "high=5", "default=3", "low=1")
    eventually(lambda: len(tried.shop.noted("S")) == 50, 60, what="all jobs")
    tried.push(1, queue="high")
    tried.shop.wait_noted("E", 1)
    eventually(lambda: tried.empty("low") and tried.empty("high"))
    work.stop()
