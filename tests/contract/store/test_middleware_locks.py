"""Locks, rates and rests in a real server: exact under concurrency, freed by who holds them, gone by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from qd.store import locks
from qd.store.base import KeyspaceStore
from qd.store.locks import Places, Rate, Strikes
from tests.contract.spaces import Beside, Stand
from tests.support.waiting import eventually

LEAVES = pytest.mark.leaves("app_qd:rate:{x}:*")  # they vanish by themselves


def together(stand: Stand, number: int, body: Callable[[KeyspaceStore, int], None]) -> None:
    """`body` in so many threads, each with a connection of its own."""
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            body(stand.store(), n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# -- places


def test_a_lock_is_had_by_one_and_again_when_it_was_freed(store: KeyspaceStore):
    lock = Places("qd:lock:x", 1, 60)
    assert lock.take(store, "a", "a1") == 0
    assert 30 < lock.take(store, "b", "b1") <= 60
    assert lock.free(store, "a", "a1")
    assert lock.take(store, "b", "b1") == 0
    assert not lock.free(store, "a", "a1")
    assert lock.free(store, "b", "b1")


def test_its_owner_has_it_again_and_the_holder_before_frees_nothing(store: KeyspaceStore):
    lock = Places("qd:lock:x", 1, 60)
    assert lock.take(store, "a", "first attempt") == 0
    assert lock.take(store, "a", "second attempt") == 0
    assert not lock.free(store, "a", "first attempt")
    assert lock.take(store, "b", "b1") > 0
    assert lock.free(store, "a", "second attempt")


def test_a_lock_that_nobody_frees_vanishes(store: KeyspaceStore, beside: Beside):
    lock = Places("qd:lock:x", 1, 0.05)
    assert lock.take(store, "a", "a1") == 0
    assert beside.call("PTTL", "app_qd:lock:x") <= 50
    eventually(lambda: lock.take(store, "b", "b1") == 0, what="the lock to expire")
    lock.free(store, "b", "b1")


def test_one_place_falls_free_by_itself_while_others_are_held(store: KeyspaceStore, beside: Beside):
    assert Places("qd:slots:x", 2, 60).take(store, "long", "1") == 0
    short = Places("qd:slots:x", 2, 1.5)
    assert short.take(store, "short", "1") == 0
    assert short.take(store, "third", "1") <= 1.5
    eventually(lambda: short.take(store, "third", "1") == 0, what="the short one's place")
    assert short.take(store, "fourth", "1") <= 1.5
    Places("qd:slots:x", 2, 60).free(store, "long", "1")
    short.free(store, "third", "1")
    eventually(lambda: beside.names() == [], what="the keys to vanish by themselves")


def test_so_many_have_a_place_and_no_more_whoever_comes_at_once(store: KeyspaceStore, stand: Stand):
    slots, most, inside = Places("qd:slots:x", 3, 60), [0], [0]
    lock = threading.Lock()

    def body(own: KeyspaceStore, n: int) -> None:
        had = 0
        while had < 20:
            if slots.take(own, f"job {n}", f"{n}.{had}") > 0:
                continue
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            had += 1
            with lock:
                inside[0] -= 1
            assert slots.free(own, f"job {n}", f"{n}.{had - 1}")

    together(stand, 8, body)
    assert most[0] <= 3


# -- rates


@LEAVES
def test_never_more_starts_than_the_rate_in_any_window(store: KeyspaceStore, stand: Stand):
    """Many owners ask as fast as they can, some when they were told, some much too early and too late."""
    rate, started, lock = Rate("x", 10, 0.1), list[float](), threading.Lock()

    def body(own: KeyspaceStore, n: int) -> None:
        for turn in range(15):
            while (answer := rate.start(own, f"{n}.{turn}", f"{n}.{turn}")).wait:
                if n % 2:
                    threading.Event().wait(answer.wait)
            with lock:
                started.append(answer.at)

    together(stand, 8, body)
    started.sort()
    assert len(started) == 120
    assert min(later - first for first, later in zip(started, started[10:], strict=False)) >= 0.1 - 1e-6


@LEAVES
def test_each_is_told_its_own_moment_in_the_order_in_which_they_came(store: KeyspaceStore, beside: Beside):
    rate = Rate("x", 2, 240)
    assert [rate.start(store, f"{n}", "m").wait for n in range(2)] == [0, 0]
    told = [rate.start(store, f"{n}", "m") for n in range(2, 8)]
    windows = [round(answer.wait / 240) for answer in told]  # some seconds of them may be over by now
    assert windows == [1, 1, 2, 2, 3, 3]
    again = [rate.start(store, f"{n}", "m") for n in range(2, 8)]  # who asks again keeps its turn
    assert [round(answer.wait / 240) for answer in again] == windows
    assert beside.call("PTTL", "app_qd:rate:{x}:turns") > 0


@LEAVES
def test_who_does_not_come_loses_its_turn_to_those_behind(store: KeyspaceStore, beside: Beside):
    rate = Rate("x", 1, 60)
    assert rate.start(store, "first", "m").wait == 0
    gone, behind = rate.start(store, "gone", "m"), rate.start(store, "behind", "m")
    assert round(behind.at - gone.at) == 60
    beside.call("ZADD", "app_qd:rate:{x}:due", 1, "gone")  # it was to come long ago
    assert rate.start(store, "behind", "m").at == gone.at
    assert beside.text("ZRANGE", "app_qd:rate:{x}:turns", 0, -1) == ["behind"]


@LEAVES
def test_a_newcomer_does_not_take_the_place_of_one_who_was_told_to_come(
    store: KeyspaceStore, beside: Beside, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(locks, "LATE", 60.0)
    rate = Rate("x", 1, 60)
    assert rate.start(store, "first", "m").wait == 0
    rate.start(store, "told", "m")
    beside.call("DEL", "app_qd:rate:{x}:starts")  # a window later
    now = int(store.now() * 1e6)
    beside.call("ZADD", "app_qd:rate:{x}:turns", now, "told")
    beside.call("ZADD", "app_qd:rate:{x}:due", now, "told")
    assert rate.start(store, "newcomer", "m").wait > 0
    assert rate.start(store, "told", "m").wait == 0


@LEAVES
def test_a_clock_that_was_set_back_shuts_a_window_for_no_longer_than_it_is(store: KeyspaceStore, beside: Beside):
    rate, quick = Rate("x", 2, 60), Rate("x", 2, 0.1)
    assert [rate.start(store, f"{n}", "m").wait for n in range(2)] == [0, 0]
    rate.start(store, "third", "m")
    two_hours_ahead(beside)
    assert 30 < rate.start(store, "third", "m").wait <= 60  # the order is kept, and no more start than may
    assert 30 < rate.start(store, "fourth", "m").wait <= 60
    assert all(beside.call("PTTL", f"app_qd:rate:{{x}}:{each}") <= 130_000 for each in ("starts", "turns", "due"))
    for owner in ("third", "fourth"):
        rate.leave(store, owner)
    two_hours_ahead(beside)
    eventually(lambda: quick.left(store) == 2, 20)  # also when it is only looked at


def two_hours_ahead(beside: Beside) -> None:
    """What a window looks like when the server's clock was set back by two hours."""
    ahead = 7200
    for each in ("starts", "turns", "due"):
        key = f"app_qd:rate:{{x}}:{each}"
        for member in beside.call("ZRANGE", key, 0, -1):
            score = float(beside.call("ZSCORE", key, member)) + ahead * 1_000_000
            beside.call("ZADD", key, f"{score:.0f}", member)
        beside.call("PEXPIRE", key, beside.call("PTTL", key) + ahead * 1000)


@LEAVES
def test_two_figures_of_one_name_take_away_no_starts_of_each_other(store: KeyspaceStore, beside: Beside):
    """As there are while a deploy goes on."""
    long, short = Rate("x", 5, 600), Rate("x", 5, 0.05)
    assert [long.start(store, f"{n}", "m").wait for n in range(5)] == [0] * 5
    eventually(lambda: not short.start(store, "short", "m", 0).wait, 20)
    assert long.start(store, "sixth", "m").wait > 500
    assert long.left(store) == 0
    assert 600_000 < beside.call("PTTL", "app_qd:rate:{x}:starts") <= 1_200_000
    oldest = beside.call("ZRANGE", "app_qd:rate:{x}:starts", 0, 0)
    assert oldest
    beside.call("PEXPIRE", "app_qd:rate:{x}:starts", 150)  # the longer one was not used for twenty minutes

    def forgotten() -> bool:
        short.start(store, "short", "m", 0)
        return bool(beside.call("ZRANGE", "app_qd:rate:{x}:starts", 0, 0) != oldest)

    eventually(forgotten, 20)


@LEAVES
def test_nobody_is_sent_away_for_longer_than_a_quarter_of_an_hour(store: KeyspaceStore):
    rate = Rate("x", 1, 86400)
    rate.start(store, "first", "m")
    told = rate.start(store, "second", "m")
    assert told.wait == 900
    assert told.at > store.now() + 86000


@LEAVES
def test_a_limit_that_is_raised_counts_for_those_who_wait(store: KeyspaceStore, beside: Beside):
    for n in range(4):
        Rate("x", 1, 60).start(store, f"{n}", "m")
    raised = Rate("x", 10, 60)
    assert [raised.start(store, f"{n}", "m").wait for n in (3, 2, 1)] == [0, 0, 0]


# -- rests


def test_too_many_errors_within_the_window_mean_a_rest(store: KeyspaceStore, beside: Beside):
    strikes = Strikes("x", 3, within=60, wait=30)
    assert strikes.resting(store) == 0
    assert [strikes.count(store, "m") for _ in range(3)] == [False, False, True]
    assert 0 < strikes.resting(store) <= 30
    assert beside.call("EXISTS", "app_qd:errors:x") == 0
    beside.call("DEL", "app_qd:rest:x")


def test_errors_that_lie_far_apart_mean_none(store: KeyspaceStore, beside: Beside):
    strikes = Strikes("x", 2, within=0.05, wait=30)
    assert not strikes.count(store, "m")
    eventually(lambda: beside.call("EXISTS", "app_qd:errors:x") == 0, what="the first error to be forgotten")
    assert not strikes.count(store, "m")
    beside.call("DEL", "app_qd:errors:x")
