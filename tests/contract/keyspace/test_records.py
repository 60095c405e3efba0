"""What every keyspace stores besides jobs: failed records, batches, ticks, queue names."""

from __future__ import annotations

import json

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.keyspace.queue import KeyspaceQueue
from qd.drivers.keyspace.records import KeptBatches, KeptTicks
from qd.drivers.types import Callback, Claim, Entry, NewBatch, Outgoing
from qd.payload.build import make
from qd.store import masters
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore, Wanted
from tests.contract.spaces import Observer

pytestmark = pytest.mark.leaves("app_qd:batch:*", "app_queues:*")


def payload(id: str) -> bytes:
    return make("mail.send", b'{"to":"a@b.c"}', uuid=id, id=id, created_at=1_000_000_000)


def keep(store: KeyspaceStore, queue: str, number: int) -> None:
    names = [store.prefix + keys.failed(queue), store.prefix + keys.failed_at(queue)]
    line = {
        "id": f"r{number}",
        "queue": queue,
        "error": "ValueError",
        "reason": f"because {number}",
        "job": "mail.send",
    }
    script("adopt").call(store.space, names, f"r{number}", json.dumps(line), payload(f"u{number}"))


def test_failed_jobs_are_read_in_pages_retried_and_forgotten(store: KeyspaceStore, observer: Observer) -> None:
    found = FailedStore(store)
    for queue, number in [*(("a", number) for number in range(7)), ("b", 8), ("a", 3)]:  # r3 exists already
        keep(store, queue, number)
    assert found.queues() == ["a", "b"]
    assert found.count(["a", "b"]) == 8
    records = list(found.records(["a", "b"], newest=False))
    assert {record.id: record.reason for record in records} == {
        f"r{n}": f"because {n}" for n in (0, 1, 2, 3, 4, 5, 6, 8)
    }
    assert [record.failed_at for record in records] == sorted(record.failed_at for record in records)
    assert records[0].payload == payload(records[0].uuid or records[0].id.replace("r", "u"))
    assert list(found.records(["a"], Wanted(until=1.0))) == []
    assert [each.id for each in found.find(["a", "b"], ["r8"])["r8"]] == ["r8"]
    some = [record for record in records if record.id in ("r1", "r2")]
    assert found.retry("a", some, store.now()) == [None, None]
    assert found.retry("a", some, store.now()) == ["", ""]
    assert observer.call("LLEN", "app_queues:a") == 2
    assert found.gone("a", {"u1": "r1", "u3": "r3"}) == {"u1"}
    found.forget("a", [record for record in records if record.queue == "a"])
    found.forget("b", [record for record in records if record.queue == "b"])
    assert found.count(["a", "b"]) == 0
    assert [name for name in observer.names() if "failed" in name] == []


def test_a_stored_value_is_taken_once(store: KeyspaceStore, observer: Observer) -> None:
    store.put("qd:batch:taken", b"value")
    assert store.take("qd:batch:taken") == b"value"
    assert store.take("qd:batch:taken") is None
    assert observer.names() == []


def test_a_batch_is_created_extended_and_cancelled(store: KeyspaceStore) -> None:
    batches = KeptBatches(store.space, "app_")
    text = make("then", b"{}", uuid="t", id="t", created_at=1_000_000_000)
    then = Callback("c", text, 0.0, (text.index(b"1000000000"),))
    batches.send(
        NewBatch("B", "import", False, {"then": then}), [Entry("a", f"u{n}", payload(f"u{n}"), 0.0) for n in (1, 2)]
    )
    batches.add("B", [Entry("a", "u3", payload("u3"), 60.0)])
    state = batches.state("B")
    assert state is not None
    assert (state.name, state.total, state.pending, state.failed) == ("import", 3, 3, 0)
    assert abs(state.created_at - store.now()) < 60
    assert state.cancelled_at is None
    assert batches.cancel("B")
    state = batches.state("B")
    assert state is not None
    assert state.cancelled_at is not None
    assert not batches.cancel("B")
    assert batches.state("C") is None


def test_ticks_are_taken_once_and_their_jobs_sent(store: KeyspaceStore, observer: Observer) -> None:
    ticks = KeptTicks(store.space, "app_")
    now = int(store.now() * 1000)
    plain = Claim("", "e1", b"", b"one", now - 1000)
    sends = Claim("a", "e2", b"", b"two", now - 1000, Outgoing("a", b"job"))
    early = Claim("", "e3", b"", b"three", now + 3_600_000)
    assert [(each.taken, each.early) for each in ticks.begin([plain, sends, early])()] == [(True, False)] * 2 + [
        (False, True)
    ]
    assert [each.found for each in ticks.begin([plain, sends])()] == [b"one", b"two"]
    assert observer.call("LRANGE", "app_queues:a", 0, -1) == [b"job"]
    assert ticks.read(["e1", "e2", "e3"]) == [b"one", b"two", b""]
    assert ticks.strange("a") == ""
    at, fields = 0, dict[str, bytes]()
    while True:
        at, some = ticks.page(at)
        fields |= some
        if not at:
            break
    assert fields == {"e1": b"one", "e2": b"two"}
    ticks.forget(["e1", "e2"])
    observer.call("SET", "app_qd:ticks", "spoilt")
    assert "app_qd:ticks is a string and not a hash" in ticks.strange("a")
    assert ticks.begin([plain])()[0].refused is not None
    observer.call("DEL", "app_qd:ticks")


def test_unique_and_keyed_jobs_are_sent_once(store: KeyspaceStore, observer: Observer) -> None:
    queue = KeyspaceQueue(ConnectionSettings("any", prefix="app_"), store.space)
    both = [Outgoing("a", payload(id), lock="order:7", owner=id, hold=60) for id in ("u1", "u2")]
    assert queue.post([*both, Outgoing("a", payload("u3"), delay=30)]) == [None, "u1", None]
    text = payload("u4").replace(b'"attempts"', b'"qd":{"key":"00001.a late"},"attempts"')
    queue.post([Outgoing("a", text, delay=30, key="00001.a late")])
    first = queue.keyed_due("a", "late")
    assert queue.move_keyed("a", "late", 3600)
    assert first is not None
    assert 3500 < (queue.keyed_due("a", "late") or 0) - first < 3700
    assert queue.cancel_keyed("a", "late")
    assert not queue.cancel_keyed("a", "late")
    assert masters.queues_found(store) == ["a"]
    observer.call("DEL", "app_" + keys.unique("order:7"))
