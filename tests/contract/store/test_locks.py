"""Leases and locks on a real server: held by one owner, freed and extended only by it, handed over in order."""

from __future__ import annotations

import pytest

from qd.drivers.redis.connection import RedisConnection
from qd.store import locks
from qd.store.base import KeyspaceStore
from qd.store.locks import Lease, Mutex, Rate
from tests.support.servers.redis import Server, free_port
from tests.support.waiting import eventually

# Keys that expire later: the last token, and the lock or wake-up of a dead waiter.
pytestmark = pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long timeouts, so that a stalled machine does not cost a waiter its place, lock or token."""
    for name in ("THERE", "GRANT", "WOKEN"):
        monkeypatch.setattr(locks, name, 60.0)


def test_a_lease_has_one_owner_and_others_learn_its_name(store: KeyspaceStore):
    ours, theirs = Lease("qd:x", "a", 30), Lease("qd:x", "b", 30)
    assert ours.take(store) is None
    assert theirs.take(store) == "a"
    assert ours.take(store) is None  # again, after a lost reply
    assert ours.free(store)
    assert theirs.take(store) is None
    assert theirs.free(store)


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


def test_a_lease_expires(store: KeyspaceStore):
    late, next_one = Lease("qd:x", "a", 0.05), Lease("qd:x", "b", 30)
    assert late.take(store) is None
    eventually(lambda: next_one.take(store) is None, 20)
    assert not late.extend(store)
    assert not late.free(store)  # the owner is compared: the next lease stays
    assert store.get("qd:x") == [b"b"]
    assert next_one.free(store)


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


def test_tokens_grow_even_if_the_servers_clock_was_set_back(store: KeyspaceStore):
    owner = Mutex("x", "a")
    first = owner.take(store, 30, stay=True).token
    assert owner.give(store)
    store.put("qd:mutex:{x}:fence", str(first + 3_000_000_000).encode(), 60)  # from a clock fifty minutes ahead
    assert owner.take(store, 30, stay=True).token == first + 3_000_000_001
    assert owner.give(store)


def test_all_keys_of_a_lock_expire(store: KeyspaceStore):
    owner, waiter = Mutex("x", "a"), Mutex("x", "b")
    owner.take(store, 30, stay=True)
    waiter.take(store, 30, stay=True)
    owner.give(store)
    names = store.names("", 1000)
    assert names == [f"qd:mutex:{{x}}{each}" for each in ("", ":fence", ":wake:b")]
    assert all(0 < store.left(name) <= 3630 for name in names)


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
