"""Leases and locks in a real server: taken by one, freed and extended only by who has them, handed over in order."""

from __future__ import annotations

import pytest

from qd.drivers.redis.connection import RedisConnection
from qd.store import locks
from qd.store.base import KeyspaceStore
from qd.store.locks import Lease, Mutex, Rate
from tests.support.servers.redis import Server, free_port
from tests.support.waiting import eventually

# What stays for a while: the last token, and what a waiter that is gone was handed or woken by.
pytestmark = pytest.mark.leaves("app_qd:mutex:{x}:fence", "app_qd:mutex:{x}:wake:*", "app_qd:mutex:{x}")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still between two lines of a test costs no waiter its place, its lock or its token."""
    for name in ("THERE", "GRANT", "WOKEN"):
        monkeypatch.setattr(locks, name, 60.0)


def test_a_lease_is_taken_by_one_and_tells_the_others_who(store: KeyspaceStore):
    ours, theirs = Lease("qd:x", "a", 30), Lease("qd:x", "b", 30)
    assert ours.take(store) is None
    assert theirs.take(store) == "a"
    assert ours.take(store) is None  # again, after a reply that was lost
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


def test_a_lease_falls_free_when_its_time_is_over(store: KeyspaceStore):
    late, next_one = Lease("qd:x", "a", 0.05), Lease("qd:x", "b", 30)
    assert late.take(store) is None
    eventually(lambda: next_one.take(store) is None, 20)
    assert not late.extend(store)
    assert not late.free(store)  # compared: it takes nothing away from the next one
    assert store.get("qd:x") == [b"b"]
    assert next_one.free(store)


def test_a_lease_that_is_passed_on_is_the_next_owners_and_once_more_does_no_harm(store: KeyspaceStore):
    ours = Lease("qd:x", "a", 30)
    assert ours.pass_to(store, "b") is None  # nobody's
    assert ours.take(store) is None
    passed = ours.pass_to(store, "b")
    assert passed == Lease("qd:x", "b", 30)
    assert ours.pass_to(store, "b") == passed  # the answer was lost
    assert not ours.free(store)
    assert Lease("qd:x", "c", 30).pass_to(store, "d") is None
    assert 0 < store.left("qd:x") <= 30
    assert passed.free(store)


# -- a Mutex: with a line of those who wait


def test_a_lock_goes_to_those_who_wait_in_the_order_in_which_they_came(store: KeyspaceStore):
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


def test_a_lock_that_falls_free_by_itself_goes_to_the_first_in_line_whoever_asks(store: KeyspaceStore):
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


def test_who_does_not_come_for_what_it_was_handed_loses_it_soon(store: KeyspaceStore):
    owner, dead, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    dead.take(store, 30, stay=True)
    second.take(store, 30, stay=True)
    assert owner.give(store)
    answer = second.take(store, 30, stay=True)
    assert answer.by == "b"
    assert answer.left is not None
    assert answer.left <= locks.GRANT
    store.space.call("PEXPIRE", "app_qd:mutex:{x}", 1)  # so long later
    eventually(lambda: second.take(store, 30, stay=True).token)
    assert second.give(store)


def test_who_stops_asking_is_passed_over(store: KeyspaceStore):
    owner, dead, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    dead.take(store, 30, stay=True)
    wire = store.space
    wire.call("ZADD", "app_qd:mutex:{x}:seen", 1, "b")  # long ago
    second.take(store, 30, stay=True)
    assert owner.give(store)
    assert second.take(store, 30, stay=True).token
    assert second.give(store)


def test_who_was_away_for_a_moment_has_its_place_in_line_again(store: KeyspaceStore):
    owner, first, second = (Mutex("x", name) for name in "abc")
    assert owner.take(store, 30, stay=True).token
    came = first.take(store, 30, stay=True).came
    second.take(store, 30, stay=True)
    store.space.call("DEL", "app_qd:mutex:{x}:line", "app_qd:mutex:{x}:seen")  # the server was restarted, say
    assert second.take(store, 30, stay=True, came=came + 1).front == 0
    assert first.take(store, 30, stay=True, came=came).front == 0
    assert owner.give(store)
    assert not second.take(store, 30, stay=True, came=came + 1).token
    assert first.take(store, 30, stay=True, came=came).token
    assert first.give(store)
    assert second.give(store)


def test_who_was_away_when_the_lock_fell_free_goes_before_those_who_came_later(store: KeyspaceStore):
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


def test_tokens_grow_also_when_the_clock_of_the_server_went_back(store: KeyspaceStore):
    owner = Mutex("x", "a")
    first = owner.take(store, 30, stay=True).token
    assert owner.give(store)
    store.put("qd:mutex:{x}:fence", str(first + 3_000_000_000).encode(), 60)  # as of a clock fifty minutes ahead
    assert owner.take(store, 30, stay=True).token == first + 3_000_000_001
    assert owner.give(store)


def test_all_keys_of_a_lock_go_by_themselves(store: KeyspaceStore):
    owner, waiter = Mutex("x", "a"), Mutex("x", "b")
    owner.take(store, 30, stay=True)
    waiter.take(store, 30, stay=True)
    owner.give(store)
    names = store.names("", 1000)
    assert names == [f"qd:mutex:{{x}}{each}" for each in ("", ":fence", ":wake:b")]
    assert all(0 < store.left(name) <= 3630 for name in names)


def test_on_a_cluster_all_keys_of_a_lock_and_those_of_a_limit_are_in_one_slot():
    bus = str(free_port())  # by itself it is 10,000 above the other, which may be none
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
