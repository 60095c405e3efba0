"""Leases, locks, rate limits and circuit breakers on a real server: exact under concurrency, freed by their holder,
expiring, handed over in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from qd.drivers.redis.connection import RedisConnection
from qd.store import locks
from qd.store.base import KeyspaceStore
from qd.store.locks import Lease, Mutex, Places, Rate, Strikes
from tests.contract.spaces import Observer, Stand
from tests.support.servers.redis import Server, free_port
from tests.support.waiting import eventually

# --- middleware


LEAVES = pytest.mark.leaves("app_qd:rate:{x}:*")  # they expire


def in_threads(stand: Stand, number: int, body: Callable[[KeyspaceStore, int], None]) -> None:
    """Run `body` in this number of threads, each with its own connection."""
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


def test_a_lock_has_one_holder_until_it_is_freed(store: KeyspaceStore):
    lock = Places("qd:lock:x", 1, 60)
    assert lock.take(store, "a", "a1") == 0
    assert 30 < lock.take(store, "b", "b1") <= 60
    assert lock.free(store, "a", "a1")
    assert lock.take(store, "b", "b1") == 0
    assert not lock.free(store, "a", "a1")
    assert lock.free(store, "b", "b1")


def test_the_owner_can_acquire_it_again_and_its_earlier_attempt_frees_nothing(store: KeyspaceStore):
    lock = Places("qd:lock:x", 1, 60)
    assert lock.take(store, "a", "first attempt") == 0
    assert lock.take(store, "a", "second attempt") == 0
    assert not lock.free(store, "a", "first attempt")
    assert lock.take(store, "b", "b1") > 0
    assert lock.free(store, "a", "second attempt")


def test_a_lock_that_is_not_freed_expires(store: KeyspaceStore, observer: Observer):
    lock = Places("qd:lock:x", 1, 0.05)
    assert lock.take(store, "a", "a1") == 0
    assert observer.call("PTTL", "app_qd:lock:x") <= 50
    eventually(lambda: lock.take(store, "b", "b1") == 0, what="the lock to expire")
    lock.free(store, "b", "b1")


def test_one_place_expires_while_others_are_held(store: KeyspaceStore, observer: Observer):
    assert Places("qd:slots:x", 2, 60).take(store, "long", "1") == 0
    short = Places("qd:slots:x", 2, 1.5)
    assert short.take(store, "short", "1") == 0
    assert short.take(store, "third", "1") <= 1.5
    eventually(lambda: short.take(store, "third", "1") == 0, what="the place with the short lease")
    assert short.take(store, "fourth", "1") <= 1.5
    Places("qd:slots:x", 2, 60).free(store, "long", "1")
    short.free(store, "third", "1")
    eventually(lambda: observer.names() == [], what="the keys to expire")


def test_concurrent_holders_never_exceed_the_limit(store: KeyspaceStore, stand: Stand):
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

    in_threads(stand, 8, body)
    assert most[0] <= 3


# -- rates


@LEAVES
def test_never_more_starts_than_the_rate_in_any_window(store: KeyspaceStore, stand: Stand):
    """Many owners poll as fast as they can, some at the returned time, some too early or too late."""
    rate, started, lock = Rate("x", 10, 0.1), list[float](), threading.Lock()

    def body(own: KeyspaceStore, n: int) -> None:
        for turn in range(15):
            while (answer := rate.start(own, f"{n}.{turn}", f"{n}.{turn}")).wait:
                if n % 2:
                    threading.Event().wait(answer.wait)
            with lock:
                started.append(answer.at)

    in_threads(stand, 8, body)
    started.sort()
    assert len(started) == 120
    assert min(later - first for first, later in zip(started, started[10:], strict=False)) >= 0.1 - 1e-6


@LEAVES
def test_each_waiter_gets_a_time_slot_in_order_of_arrival(store: KeyspaceStore, observer: Observer):
    rate = Rate("x", 2, 240)
    assert [rate.start(store, f"{n}", "m").wait for n in range(2)] == [0, 0]
    slots = [rate.start(store, f"{n}", "m") for n in range(2, 8)]
    windows = [round(answer.wait / 240) for answer in slots]  # some seconds may have passed
    assert windows == [1, 1, 2, 2, 3, 3]
    again = [rate.start(store, f"{n}", "m") for n in range(2, 8)]  # a repeated request keeps its slot
    assert [round(answer.wait / 240) for answer in again] == windows
    assert observer.call("PTTL", "app_qd:rate:{x}:turns") > 0


@LEAVES
def test_an_unused_time_slot_goes_to_the_next_waiter(store: KeyspaceStore, observer: Observer):
    rate = Rate("x", 1, 60)
    assert rate.start(store, "first", "m").wait == 0
    gone, behind = rate.start(store, "gone", "m"), rate.start(store, "behind", "m")
    assert round(behind.at - gone.at) == 60
    observer.call("ZADD", "app_qd:rate:{x}:due", 1, "gone")  # its slot is long past
    assert rate.start(store, "behind", "m").at == gone.at
    assert observer.text("ZRANGE", "app_qd:rate:{x}:turns", 0, -1) == ["behind"]


@LEAVES
def test_a_newcomer_does_not_take_a_reserved_time_slot(
    store: KeyspaceStore, observer: Observer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(locks, "LATE", 60.0)
    rate = Rate("x", 1, 60)
    assert rate.start(store, "first", "m").wait == 0
    rate.start(store, "reserved", "m")
    observer.call("DEL", "app_qd:rate:{x}:starts")  # a window later
    now = int(store.now() * 1e6)
    observer.call("ZADD", "app_qd:rate:{x}:turns", now, "reserved")
    observer.call("ZADD", "app_qd:rate:{x}:due", now, "reserved")
    assert rate.start(store, "newcomer", "m").wait > 0
    assert rate.start(store, "reserved", "m").wait == 0


@LEAVES
def test_a_clock_set_back_blocks_a_rate_for_one_window_at_most(store: KeyspaceStore, observer: Observer):
    rate, quick = Rate("x", 2, 60), Rate("x", 2, 0.1)
    assert [rate.start(store, f"{n}", "m").wait for n in range(2)] == [0, 0]
    rate.start(store, "third", "m")
    two_hours_ahead(observer)
    assert 30 < rate.start(store, "third", "m").wait <= 60  # the order and the rate are kept
    assert 30 < rate.start(store, "fourth", "m").wait <= 60
    assert all(observer.call("PTTL", f"app_qd:rate:{{x}}:{each}") <= 130_000 for each in ("starts", "turns", "due"))
    for owner in ("third", "fourth"):
        rate.leave(store, owner)
    two_hours_ahead(observer)
    eventually(lambda: quick.left(store) == 2, 20)  # also if it is only read


def two_hours_ahead(observer: Observer) -> None:
    """Change a window as if the server's clock had been set back by two hours."""
    ahead = 7200
    for each in ("starts", "turns", "due"):
        key = f"app_qd:rate:{{x}}:{each}"
        for member in observer.call("ZRANGE", key, 0, -1):
            score = float(observer.call("ZSCORE", key, member)) + ahead * 1_000_000
            observer.call("ZADD", key, f"{score:.0f}", member)
        observer.call("PEXPIRE", key, observer.call("PTTL", key) + ahead * 1000)


@LEAVES
def test_two_rates_with_one_name_do_not_delete_each_others_starts(store: KeyspaceStore, observer: Observer):
    """This happens during a deploy that changes a rate."""
    long, short = Rate("x", 5, 600), Rate("x", 5, 0.05)
    assert [long.start(store, f"{n}", "m").wait for n in range(5)] == [0] * 5
    eventually(lambda: not short.start(store, "short", "m", 0).wait, 20)
    assert long.start(store, "sixth", "m").wait > 500
    assert long.left(store) == 0
    assert 600_000 < observer.call("PTTL", "app_qd:rate:{x}:starts") <= 1_200_000
    oldest = observer.call("ZRANGE", "app_qd:rate:{x}:starts", 0, 0)
    assert oldest
    observer.call("PEXPIRE", "app_qd:rate:{x}:starts", 150)  # the longer one was not used for twenty minutes

    def forgotten() -> bool:
        short.start(store, "short", "m", 0)
        return bool(observer.call("ZRANGE", "app_qd:rate:{x}:starts", 0, 0) != oldest)

    eventually(forgotten, 20)


@LEAVES
def test_a_wait_is_at_most_a_quarter_of_an_hour(store: KeyspaceStore):
    rate = Rate("x", 1, 86400)
    rate.start(store, "first", "m")
    second = rate.start(store, "second", "m")
    assert second.wait == 900
    assert second.at > store.now() + 86000


@LEAVES
def test_a_raised_limit_applies_to_waiters(store: KeyspaceStore, observer: Observer):
    for n in range(4):
        Rate("x", 1, 60).start(store, f"{n}", "m")
    raised = Rate("x", 10, 60)
    assert [raised.start(store, f"{n}", "m").wait for n in (3, 2, 1)] == [0, 0, 0]


# -- circuit breakers


def test_too_many_errors_within_the_window_open_the_circuit(store: KeyspaceStore, observer: Observer):
    strikes = Strikes("x", 3, within=60, wait=30)
    assert strikes.resting(store) == 0
    assert [strikes.count(store, "m") for _ in range(3)] == [False, False, True]
    assert 0 < strikes.resting(store) <= 30
    assert observer.call("EXISTS", "app_qd:errors:x") == 0
    observer.call("DEL", "app_qd:rest:x")


def test_errors_far_apart_do_not_open_the_circuit(store: KeyspaceStore, observer: Observer):
    strikes = Strikes("x", 2, within=0.05, wait=30)
    assert not strikes.count(store, "m")
    eventually(lambda: observer.call("EXISTS", "app_qd:errors:x") == 0, what="the first error to expire")
    assert not strikes.count(store, "m")
    observer.call("DEL", "app_qd:errors:x")


# --- leases and locks


# Keys that expire later: the last token, and the lock or wake-up of a dead waiter.


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long timeouts, so that a stalled machine does not cost a waiter its place, lock or token."""
    for name in ("THERE", "GRANT", "WOKEN"):
        monkeypatch.setattr(locks, name, 60.0)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_lease_has_one_owner_and_others_learn_its_name(store: KeyspaceStore):
    ours, theirs = Lease("qd:x", "a", 30), Lease("qd:x", "b", 30)
    assert ours.take(store) is None
    assert theirs.take(store) == "a"
    assert ours.take(store) is None  # again, after a lost reply
    assert ours.free(store)
    assert theirs.take(store) is None
    assert theirs.free(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_only_the_owner_frees_and_extends_a_lease(store: KeyspaceStore):
    ours, theirs = Lease("qd:x", "a", 20), Lease("qd:x", "b", 30)
    assert ours.take(store) is None
    assert not theirs.free(store)
    assert not theirs.extend(store)
    assert store.left("qd:x") <= 20
    assert Lease("qd:x", "a", 60).extend(store)
    assert 25 < store.left("qd:x") <= 60
    assert ours.free(store)
    assert not ours.free(store)
    assert not ours.extend(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_lease_expires(store: KeyspaceStore):
    late, next_one = Lease("qd:x", "a", 0.05), Lease("qd:x", "b", 30)
    assert late.take(store) is None
    eventually(lambda: next_one.take(store) is None, 20)
    assert not late.extend(store)
    assert not late.free(store)  # the owner is compared: the next lease stays
    assert store.get("qd:x") == [b"b"]
    assert next_one.free(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_lease_can_be_passed_to_another_owner_repeatedly(store: KeyspaceStore):
    ours = Lease("qd:x", "a", 30)
    assert ours.pass_to(store, "b") is None  # it has no owner
    assert ours.take(store) is None
    passed = ours.pass_to(store, "b")
    assert passed == Lease("qd:x", "b", 30)
    assert ours.pass_to(store, "b") == passed  # after a lost reply
    assert not ours.free(store)
    assert Lease("qd:x", "c", 30).pass_to(store, "d") is None
    assert 0 < store.left("qd:x") <= 30
    assert passed.free(store)


# -- a Mutex: with a queue of waiters


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_lock_goes_to_its_waiters_in_order(store: KeyspaceStore):
    owner, *waiters = [Mutex("x", name) for name in "abcd"]
    assert owner.take(store, 30, stay=True).token
    asked = [each.take(store, 30, stay=True) for each in waiters]
    assert [answer.front for answer in asked] == [0, 1, 2]
    assert {answer.by for answer in asked} == {"a"}
    tokens = []
    for before, after in zip([owner, *waiters], waiters, strict=False):
        assert before.give(store)
        assert not Mutex("x", "late").take(store, 30, stay=False).token
        others = [each for each in waiters if each is not after]
        assert not any(each.take(store, 30, stay=False).token for each in others if each.owner < after.owner)
        tokens.append(after.take(store, 30, stay=True).token)
    assert tokens == sorted(set(tokens))
    assert waiters[-1].give(store)
    assert Mutex("x", "").by(store) is None


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_an_expired_lock_goes_to_the_first_waiter(store: KeyspaceStore):
    owner, first, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    assert first.take(store, 30, stay=True).front == 0
    assert second.take(store, 30, stay=True).front == 1
    assert owner.extend(store, 0.05)
    eventually(lambda: store.get("qd:mutex:{x}") == [None])
    assert second.take(store, 30, stay=True).by == "b"
    first.wait(store, 20)  # it was woken
    assert store.get(f"qd:mutex:{{x}}:wake:{first.owner}") == [None]
    assert first.take(store, 30, stay=True).token
    assert not owner.give(store)
    assert first.give(store)
    assert second.take(store, 30, stay=True).token
    assert second.give(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_waiter_that_does_not_pick_up_the_lock_loses_it(store: KeyspaceStore):
    owner, dead, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    dead.take(store, 30, stay=True)
    second.take(store, 30, stay=True)
    assert owner.give(store)
    answer = second.take(store, 30, stay=True)
    assert answer.by == "b"
    assert answer.left is not None
    assert answer.left <= locks.GRANT
    store.space.call("PEXPIRE", "app_qd:mutex:{x}", 1)  # the grant expires
    eventually(lambda: second.take(store, 30, stay=True).token)
    assert second.give(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_waiter_that_stops_polling_is_skipped(store: KeyspaceStore):
    owner, dead, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    dead.take(store, 30, stay=True)
    wire = store.space
    wire.call("ZADD", "app_qd:mutex:{x}:seen", 1, "b")  # long ago
    second.take(store, 30, stay=True)
    assert owner.give(store)
    assert second.take(store, 30, stay=True).token
    assert second.give(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_waiter_returns_to_its_place_after_an_interruption(store: KeyspaceStore):
    owner, first, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    came = first.take(store, 30, stay=True).came
    second.take(store, 30, stay=True)
    store.space.call("DEL", "app_qd:mutex:{x}:line", "app_qd:mutex:{x}:seen")  # for example after a server restart
    assert second.take(store, 30, stay=True, came=came + 1).front == 0
    assert first.take(store, 30, stay=True, came=came).front == 0
    assert owner.give(store)
    assert not second.take(store, 30, stay=True, came=came + 1).token
    assert first.take(store, 30, stay=True, came=came).token
    assert first.give(store)
    assert second.give(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_a_waiter_that_missed_the_release_goes_before_later_ones(store: KeyspaceStore):
    owner, first, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    came = first.take(store, 30, stay=True).came
    second.take(store, 30, stay=True)
    store.space.call("ZREM", "app_qd:mutex:{x}:line", "b")
    assert owner.extend(store, 0.05)
    eventually(lambda: store.get("qd:mutex:{x}") == [None])
    assert first.take(store, 30, stay=True, came=came).token
    assert not second.take(store, 30, stay=False).token
    assert first.give(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_tokens_grow_even_if_the_servers_clock_was_set_back(store: KeyspaceStore):
    owner = Mutex("x", "a")
    first = owner.take(store, 30, stay=True).token
    assert owner.give(store)
    store.put("qd:mutex:{x}:fence", str(first + 3_000_000_000).encode(), 60)  # from a clock fifty minutes ahead
    assert owner.take(store, 30, stay=True).token == first + 3_000_000_001
    assert owner.give(store)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_all_keys_of_a_lock_expire(store: KeyspaceStore):
    owner, waiter = Mutex("x", "a"), Mutex("x", "b")
    owner.take(store, 30, stay=True)
    waiter.take(store, 30, stay=True)
    owner.give(store)
    names = store.names("", 1000)
    assert names == [f"qd:mutex:{{x}}{each}" for each in ("", ":fence", ":wake:b")]
    assert all(0 < store.left(name) <= 3630 for name in names)


@pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")
def test_on_a_cluster_all_keys_of_a_lock_and_those_of_a_limit_are_in_one_slot():
    bus = str(free_port())  # the default is the port + 10,000, which may be invalid
    with Server("--cluster-enabled", "yes", "--cluster-port", bus, "--appendonly", "no") as cluster:
        client = cluster.client()
        client.call("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in client.call("CLUSTER", "INFO"), 20)
        wire = RedisConnection(cluster.url)
        store = KeyspaceStore(wire, "app_")
        owner, waiter = Mutex("report 7", "a"), Mutex("report 7", "b")
        assert owner.take(store, 30, stay=True).token
        assert waiter.take(store, 30, stay=True).by == "a"
        assert owner.extend(store, 60)
        assert owner.give(store)
        waiter.wait(store, 20)
        assert waiter.take(store, 30, stay=True).token
        assert waiter.give(store)
        rate = Rate("report", 1, 60)
        assert [rate.start(store, owner, "m").wait > 0 for owner in "ab"] == [False, True]
        rate.leave(store, "b")
        assert rate.left(store) == 0
        wire.close()
        client.close()
