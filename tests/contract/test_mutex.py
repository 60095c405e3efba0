"""Leases in a real server: taken by one, freed and extended only by who has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qd.connectors.redis.wire import Wire
from qd.store.mutex import Lease
from qd.store.redis import RedisStore
from tests.support.clock import eventually
from tests.support.resp import Client
from tests.support.server import Server


@pytest.fixture
def store(server: Server, clean_redis: Client) -> Iterator[RedisStore]:
    wire = Wire(server.url)
    yield RedisStore(wire, "app_")
    wire.close()


def test_a_lease_is_taken_by_one_and_tells_the_others_who(store: RedisStore):
    ours, theirs = Lease("qd:x", "a", 30), Lease("qd:x", "b", 30)
    assert ours.take(store) is None
    assert theirs.take(store) == "a"
    assert ours.take(store) is None  # again, after a reply that was lost
    assert ours.free(store)
    assert theirs.take(store) is None
    assert theirs.free(store)


def test_only_the_owner_frees_and_extends_a_lease(store: RedisStore):
    ours, theirs = Lease("qd:x", "a", 0.3), Lease("qd:x", "b", 30)
    assert ours.take(store) is None
    assert not theirs.free(store)
    assert not theirs.extend(store)
    assert store.left("qd:x") <= 0.3
    assert Lease("qd:x", "a", 60).extend(store)
    assert 50 < store.left("qd:x") <= 60
    assert ours.free(store)
    assert not ours.free(store)
    assert not ours.extend(store)


def test_a_lease_falls_free_when_its_time_is_over(store: RedisStore):
    late, next_one = Lease("qd:x", "a", 0.05), Lease("qd:x", "b", 30)
    assert late.take(store) is None
    eventually(lambda: next_one.take(store) is None, 5)
    assert not late.extend(store)
    assert not late.free(store)  # compared: it takes nothing away from the next one
    assert store.get("qd:x") == [b"b"]
    assert next_one.free(store)
