"""Counters in shared memory: rows of a slot, their sums, and the ledger of what was written."""

from __future__ import annotations

import os

import pytest

from qd.process import counters
from qd.process.counters import BUCKETS, ROWS, RUN, RUN_US, WAIT, WAIT_US, C, CounterTable, Ledger, text_of


def numbers(table: CounterTable, queue: str, job: str) -> list[int]:
    packed = table.totals()[text_of(queue, job)].to_bytes(counters.NUMBERS, "little")
    return memoryview(packed).cast("Q").tolist()


@pytest.mark.parametrize(
    ("us", "bucket"), [(0, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 2), (4000, 2), (4001, 3), (10**12, BUCKETS - 1)]
)
def test_a_time_is_in_the_first_bucket_that_is_long_enough(us: int, bucket: int) -> None:
    table = CounterTable()
    table.slot(0).ended(table.slot(0).started("a", "x"), C.DONE, us)
    assert numbers(table, "a", "x")[RUN + bucket] == 1


def test_the_counts_of_all_slots_are_added_by_queue_and_job() -> None:
    table = CounterTable()
    for slot in (3, 200):
        own = table.slot(slot)
        row = own.started("mail", "welcome", 2_000_000)
        own.ended(row, C.DONE, 3000)
        own.started("other", "welcome")
    found = numbers(table, "mail", "welcome")
    assert (found[C.STARTED], found[C.DONE], found[WAIT + 11], found[WAIT_US]) == (2, 2, 2, 4_000_000)
    assert (found[RUN + 2], found[RUN_US]) == (2, 6000)
    assert numbers(table, "other", "welcome")[C.STARTED] == 2


def test_the_next_worker_of_a_slot_continues_with_its_rows() -> None:
    table = CounterTable()
    table.slot(1).started("a", "x")
    table.slot(1).started("a", "x")
    assert [text for _, text in table.rows(1)] == [counters.OTHER, text_of("a", "x")]
    assert numbers(table, "a", "x")[C.STARTED] == 2


def test_names_that_do_not_fit_are_counted_as_other() -> None:
    table = CounterTable()
    own = table.slot(0)
    for number in range(ROWS + 10):
        own.started("a", f"job{number}")
    totals = table.totals()
    assert len(totals) == ROWS
    assert totals[counters.OTHER] & (2**64 - 1) == 11
    assert not list(table.rows(1))
    assert table.slot(0).started("a", "job5") == own.started("a", "job5")


def test_running_jobs_are_those_without_an_outcome() -> None:
    table = CounterTable()
    own = table.slot(0)
    first, second = own.started("a", "x"), own.started("a", "y")
    own.ended(first, C.DONE, 5)
    assert own.running() == {text_of("a", "y"): second}
    second[C.CRASHED] += own.count_running(second)
    second[C.CRASHED] += own.count_running(second)
    assert not own.running()
    assert numbers(table, "a", "y")[C.CRASHED] == 1


def test_another_process_counts_in_the_same_memory() -> None:
    table = CounterTable()
    child = os.fork()
    if not child:
        table.slot(7).started("a", "x")
        os._exit(0)
    os.waitpid(child, 0)
    assert numbers(table, "a", "x")[C.STARTED] == 1


def test_a_write_without_a_reply_is_repeated_by_the_next_keeper() -> None:
    table = CounterTable()
    own, text = table.slot(0), text_of("a", "x")
    own.started("a", "x")
    first = Ledger(table).open(table.totals())
    own.started("a", "x")
    own.started("a", "y")
    following = Ledger(table)
    assert following.open(table.totals()) == first
    assert (first[0], first[1][text][C.STARTED]) == (1, 1)
    following.confirm()
    number, added = Ledger(table).open(table.totals())
    assert (number, {text: words[C.STARTED] for text, words in added.items()}) == (2, {text: 1, text_of("a", "y"): 1})


def test_an_interrupted_staging_is_done_again() -> None:
    table = CounterTable()
    table.slot(0).started("a", "x")
    Ledger(table)._stage(table.totals())
    table.slot(0).started("a", "x")
    number, added = Ledger(table).open(table.totals())
    assert (number, added[text_of("a", "x")][C.STARTED]) == (1, 2)


def test_the_ledger_adds_up_what_does_not_fit() -> None:
    table = CounterTable()
    ledger = Ledger(table)
    for number in range(counters.NAMES + 9):
        table.slot(number // 50).started("a", f"job{number}")
    _, added = ledger.open(table.totals())
    assert len(added) == counters.NAMES
    assert added[counters.OTHER][C.STARTED] == 10
    ledger.confirm()
    assert Ledger(table).open(table.totals()) == (2, {})
