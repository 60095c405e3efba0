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
from qd.worker.queues import Rota, ShutQueues
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
