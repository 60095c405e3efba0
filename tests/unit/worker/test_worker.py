"""When a worker may take a job, and the order in which it polls its queues."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.payload.format import read
from qd.process import scoreboard
from qd.process.scoreboard import H, Scoreboard, now
from qd.worker.queues import LONG, Rota, ShutQueues, WeightedRota
from qd.worker.worker import MONTH, Worker, waited_us


class BoardOfANewKeeper(Scoreboard):
    """The keeper writes its first contact right after the worker's first read of the scoreboard."""

    def header(self, word: int) -> int:
        before = super().header(word)
        scoreboard.set_open_queues(cast(Scoreboard, super()), True, ())
        self.set_header(H.KEEPER_CONTACT, now())
        return before


def test_a_new_worker_sees_maintenance_mode_before_the_first_contact_of_its_keeper() -> None:
    board = BoardOfANewKeeper()
    shut = ShutQueues(board, ("mail",), force=False)
    worker: Any = SimpleNamespace(
        board=board, shut_queues=shut, paused=False, lease_ns=10**12, hears=lambda event: False
    )
    assert not Worker._may_look(worker)
    assert not Worker._may_look(worker)
    scoreboard.set_open_queues(board, False, ())
    shut.force = True
    assert Worker._may_look(worker)


QUEUES = ("a", "b", "c", "d")


def served(rota: Rota, jobs: dict[str, int], turns: int, *, each: float = 0.0) -> str:
    """The queues of the jobs taken in this number of turns, in order. each: seconds per job."""
    left, found = Counter(jobs), ""
    for turn in range(turns):
        queue = next((queue for queue in rota.order if left[queue]), None)
        if queue is not None:
            left[queue] -= 1
            rota.took(queue, turn * each)
            found += queue
    return found


def test_named_queues_are_polled_in_strict_order() -> None:
    assert served(Rota(QUEUES), {"a": 3, "d": 2}, 5) == "aaadd"


def test_rotating_queues_get_equal_shares_despite_empty_queues() -> None:
    assert served(Rota(QUEUES, stays=1), {"a": 9, "d": 9}, 8) == "adadadad"
    assert served(Rota(QUEUES, stays=1), {"a": 9, "b": 9, "d": 9}, 7) == "abdabda"


def test_each_worker_starts_with_a_different_queue() -> None:
    assert [Rota(QUEUES, stays=1, begin=slot).order[0] for slot in range(6)] == [*"abcdab"]


def test_a_worker_stays_with_a_queue_if_polling_another_costs_a_call() -> None:
    assert served(Rota(QUEUES, stays=3), {"a": 9, "c": 9}, 14) == "aaacccaaacccaa"


def test_a_worker_does_not_stay_for_long_jobs() -> None:
    assert served(Rota(QUEUES, stays=8), {"a": 9, "c": 9}, 10, each=60.0) == "aaccaaccaa"
    assert served(Rota(QUEUES, stays=8), {"a": 9, "c": 9}, 12, each=0.4) == "aaaaccccaaaa"
    assert served(Rota(QUEUES, stays=8), {"a": 9, "c": 9}, 16, each=0.1) == "aaaaaaaacccccccc"


def test_the_only_busy_queue_is_polled_first_in_most_turns() -> None:
    rota, first = Rota(QUEUES, stays=4), ""
    for _ in range(12):
        first += rota.order[0]
        rota.took("c", 0.0)
    assert first == "acccdcccdccc"


def test_every_order_contains_every_queue_once() -> None:
    rota = Rota(QUEUES, stays=2)
    for queue in "abcdddcba":
        rota.took(queue, 0.0)
        assert sorted(rota.order) == [*QUEUES]


# -- weights

FULL = dict.fromkeys(QUEUES, 10**6)


def shares(
    rota: Rota, turns: int, *, most: int = 1, full: dict[str, int] | None = None, each: float = 0.0
) -> Counter[str]:
    """How many jobs of each queue are taken in this number of turns of at most `most` jobs."""
    found, left = Counter[str](), Counter(FULL if full is None else full)
    for turn in range(turns):
        queue = next(queue for queue in rota.order if left[queue])
        count = min(most, rota.most, left[queue])
        rota.took(queue, turn * each, count)
        left[queue] -= count
        found[queue] += count
    return found


@pytest.mark.parametrize("most", [1, 4, 16, 64])
@pytest.mark.parametrize("weights", [(5, 3, 1), (50, 30, 10), (1, 1, 1), (7, 2, 2)])
@pytest.mark.parametrize("slot", range(4))
def test_weighted_queues_get_their_shares_of_1000_jobs(most: int, weights: tuple[int, ...], slot: int) -> None:
    rota, found = WeightedRota(QUEUES[:3], weights, begin=slot), Counter[str]()
    while found.total() < 1000:
        found += shares(rota, 1, most=most)
    for queue, weight in zip(QUEUES, weights, strict=False):
        expected = found.total() * weight / sum(weights)
        assert abs(found[queue] - expected) <= 0.1 * expected, found


def test_a_heavy_queue_does_not_starve_a_light_one() -> None:
    assert shares(WeightedRota(("a", "b"), (1000, 1)), 2002) == {"a": 2000, "b": 2}


def test_workers_together_keep_the_proportion_although_each_takes_many_jobs_of_a_queue() -> None:
    found = Counter[str]()
    for slot in range(16):
        found += shares(WeightedRota(QUEUES[:3], (5, 3, 1), begin=slot), 31)  # half a round each
    for queue, expected in zip(QUEUES, (5 / 9, 3 / 9, 1 / 9), strict=False):
        assert abs(found[queue] / found.total() - expected) < 0.06, found


def test_long_jobs_alternate_between_weighted_queues() -> None:
    found, rota = "", WeightedRota(("a", "b"), (2, 1))
    for turn in range(9):
        found += rota.order[0]
        rota.took(rota.order[0], turn * 2 * LONG)
    assert Counter(found[:3]) == Counter(found[3:6]) == Counter(found[6:]) == {"a": 2, "b": 1}


def test_the_share_of_an_empty_queue_goes_to_the_others_in_proportion() -> None:
    full = {"a": 10**6, "c": 10**6}
    found = shares(WeightedRota(QUEUES[:3], (3, 5, 1)), 1000, full=full)
    assert abs(found["a"] - 750) < 30
    assert found.total() == 1000


def test_a_queue_that_was_empty_does_not_catch_up() -> None:
    rota = WeightedRota(("a", "b"), (1, 1))
    shares(rota, 1000, full={"a": 10**6})
    found = shares(rota, 200)
    assert abs(found["b"] - 100) <= 32


def test_jobs_that_were_put_back_do_not_count() -> None:
    rota, ran = WeightedRota(QUEUES[:3], (5, 3, 1)), Counter[str]()
    for _ in range(300):
        queue = rota.order[0]
        taken = min(10, rota.most)
        rota.took(queue, 0.0, taken)
        for _ in range(taken - 2):  # two of them run, the others go back
            rota.put_back(queue)
        ran[queue] += min(2, taken)
    assert abs(ran["a"] / ran["c"] - 5) < 0.5, ran


def test_every_weighted_order_contains_every_queue_once() -> None:
    rota = WeightedRota(QUEUES, (5, 3, 1, 1))
    for queue in "abcdddcba" * 20:
        rota.took(queue, 0.0, rota.most)
        assert sorted(rota.order) == [*QUEUES]


@pytest.mark.parametrize(
    ("text", "waited"),
    [
        ('{"job":"t","due_ms":999750,"createdAt":900}', 250_000),
        ('{"job":"t","due_ms":1000750,"createdAt":900}', 0),  # the clock of the producer is fast
        ('{"job":"t","due_ms":"soon","createdAt":988}', 12_000_000),
        ('{"job":"t","createdAt":988}', 12_000_000),  # from PHP
        (f'{{"job":"t","due_ms":{-(10**18)}}}', int(MONTH) * 1_000_000),
        ('{"job":"t"}', None),
        ('{"job":"t","due_ms":999750,"attempts":2}', None),
        ('{"job":"t","due_ms":999750,"failures":"1 900.000"}', None),
    ],
)
def test_a_wait_counts_from_the_moment_at_which_a_job_is_due(
    text: str, waited: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert waited_us(read(text.encode())) == waited
