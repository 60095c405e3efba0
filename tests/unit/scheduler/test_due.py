"""When ticks are due, and what happens to late ones. Times in milliseconds; one tick per second, late after 60 s."""

from __future__ import annotations

import pytest

from qd.scheduler.due import MOST, Backlog, Due, Moments, decide, latest

LATE = 60_000


def seconds(at: int) -> int:
    return (at // 1000 + 1) * 1000


def due(last: int, now: int, missed: str = "skip") -> Due | None:
    return decide(seconds, last, now, LATE, missed)  # type: ignore[arg-type]


def test_an_entry_is_due_at_its_tick_and_not_before():
    assert due(5000, 5999) is None
    assert due(5000, 6000) == Due(6000)


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_slightly_late_ticks_are_taken_in_order(missed):
    assert due(5000, 66_000, missed) == Due(6000)
    assert due(6000, 66_000, missed) == Due(7000)


def test_skip_ignores_all_late_ticks():
    assert due(5000, 100_000) == Due(39_000, runs=False, missed=34)
    assert due(39_000, 100_000) == Due(40_000)


def test_once_runs_the_latest_late_tick():
    assert due(5000, 100_000, "once") == Due(39_000, runs=True, missed=33)
    assert due(38_000, 100_000, "once") == Due(39_000)


def test_all_runs_each_late_tick_in_order():
    assert due(5000, 100_000, "all") == Due(6000)


def test_all_runs_at_most_the_latest_thousand():
    now = 10_000_000
    found = due(0, now, "all")
    assert found == Due(now - LATE - 1000 * MOST, missed=MOST)
    assert due(found.at, now, "all") == Due(found.at + 1000)


def test_a_timing_that_never_comes_again_is_never_due():
    assert decide(lambda at: None, 0, 100_000, LATE, "all") is None


def test_a_month_of_missed_seconds_is_skipped_without_visiting_each():
    asked = []

    def counted(at: int) -> int:
        asked.append(at)
        return seconds(at)

    month = 30 * 86_400_000
    assert decide(counted, 0, month, LATE, "skip") == Due(month - LATE - 1000, runs=False, missed=MOST)
    assert len(asked) < 3 * MOST


@pytest.mark.parametrize("after", [0, 3_599_999])
def test_the_latest_tick_of_a_rare_timing_is_found_far_back(after):
    hourly = lambda at: (at // 3_600_000 + 1) * 3_600_000  # noqa: E731
    assert latest(hourly, after, 7_000_000, 1) == [3_600_000]


def test_items_of_one_time_are_grouped_and_the_earliest_comes_first():
    moments: Moments[str] = Moments()
    for at, what in ((30, "c"), (10, "a"), (30, "d"), (20, "b")):
        moments.add(at, what)
    assert (moments.next, len(moments)) == (10, 4)
    assert moments.pop(20) == [(10, ["a"]), (20, ["b"])]
    assert moments.pop(29) == []
    assert moments.pop(30) == [(30, ["c", "d"])]
    assert moments.next is None


def test_a_backlog_is_taken_one_by_one_earliest_first():
    backlog: Backlog[int] = Backlog()
    for at, what in ((30, 5), (10, 2), (10, 1)):
        backlog.add(at, what)
    assert [backlog.take(int), backlog.together] == [1, True]
    backlog.add(5, 9)
    assert (backlog.take(int), backlog.together, len(backlog)) == (2, False, 2)
    assert backlog.take(int) == 9
    assert backlog.clear() == [5]
    assert (backlog.take(int), len(backlog)) == (None, 0)


def test_a_small_backlog_is_not_counted_again():
    asked = []

    def counted(at: int) -> int:
        asked.append(at)
        return seconds(at)

    assert decide(counted, 5000, 900_000, LATE, "all", (5000, 700_000)) == Due(6000)
    assert len(asked) == 1
    for few in ((6000, 700_000), (1000, 6000)):  # the stored time went back; the last tick is taken
        asked.clear()
        assert decide(counted, 5000, 900_000, LATE, "all", few) == Due(6000)
        assert len(asked) > 100
