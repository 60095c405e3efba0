"""The list of audit events on Redis and on each database: numbers, merging, trimming, and reading in pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qd.drivers.keyspace import keys
from qd.store import audit
from qd.store.audit import Event
from qd.store.base import KeyspaceStore
from tests.contract.spaces import Stand

KEY = f"app_{keys.EVENTS}"


@pytest.fixture
def store(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyspaceStore]:
    monkeypatch.setenv("QD_ACTOR", "ana")
    found = stand.store()
    yield found
    found.space.call("DEL", KEY)


def shown(store: KeyspaceStore, **bounds: float) -> list[tuple[int, str, int]]:
    return [(entry.number, entry.what, entry.count) for entry in audit.read(store, **bounds)]  # type: ignore[arg-type]


def test_an_event_is_read_as_it_was_recorded_with_the_time_of_the_server(store: KeyspaceStore) -> None:
    before = store.now()
    audit.record(store, Event("pause", {"queue": "mäil", "jobs": 3}, 'db "upgrade"\n'))
    (entry,) = audit.read(store)
    assert (entry.number, entry.count, entry.actor, entry.what) == (1, 1, "ana", "pause")
    assert (entry.object, entry.reason) == ({"queue": "mäil", "jobs": 3}, 'db "upgrade"\n')
    assert before - 0.001 <= entry.first_at == entry.at <= store.now() + 0.001


def test_equal_events_of_a_minute_are_one_with_a_new_number(store: KeyspaceStore) -> None:
    audit.record(store, Event("lease lost", {"host": "a"}, times=200), Event("up", {}))
    audit.record(store, Event("lease lost", {"host": "a"}, times=39), Event("lease lost", {"host": "b"}))
    audit.record(store, Event("lease lost", {"host": "a"}))
    assert shown(store) == [(2, "up", 1), (4, "lease lost", 1), (5, "lease lost", 240)]
    merged = audit.read(store)[-1]
    assert merged.first_at < merged.at


def test_deploys_keep_their_order(store: KeyspaceStore) -> None:
    deploy = Event("restart", {}), Event("new code", {"host": "a"})
    audit.record(store, *deploy, Event("refused new code", {"host": "a"}), *deploy)
    assert [what for _, what, _ in shown(store)] == ["restart", "new code", "refused new code", "restart", "new code"]


def test_an_event_of_the_minute_before_stays_as_it_is(store: KeyspaceStore) -> None:
    audit.record(store, Event("up", {}))
    number, at, _, count, text = store.space.call("LPOP", KEY).split(b" ", 4)
    old = b"%.6f" % (float(at) - 61)
    store.space.call("RPUSH", KEY, b" ".join([number, old, old, count, text]))
    audit.record(store, Event("up", {}))
    assert shown(store) == [(1, "up", 1), (2, "up", 1)]
    assert shown(store, since=store.now() - 30) == [(2, "up", 1)]


def test_the_step_that_adds_deletes_the_oldest(store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST", 5)
    audit.record(store, *[Event("cancel", {"id": str(n)}) for n in range(8)])
    assert store.space.call("LLEN", KEY) == 5
    audit.record(store, Event("up", {}))
    assert [number for number, _, _ in shown(store)] == [5, 6, 7, 8, 9]
    assert audit.last_number(store) == 9


def test_entries_are_read_in_pages_and_each_once(store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PAGE", 3)
    audit.record(store, *[Event("cancel", {"id": str(n)}) for n in range(8)])
    call = store.space.call

    def meanwhile(*words: Any) -> Any:
        """Another process adds an entry before each page."""
        call("RPUSH", KEY, call("LINDEX", KEY, -1).replace(b"8 ", b"9 ", 1))
        return call(*words)

    monkeypatch.setattr(store.space, "call", meanwhile)
    assert [number for number, _, _ in shown(store)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    monkeypatch.setattr(store.space, "call", call)
    assert [number for number, _, _ in shown(store, most=2)] == [8, 9]
    assert [number for number, _, _ in shown(store, after=6)] == [7, 8, 9]


@pytest.mark.parametrize("raw", [b"", b"soon", b"7 1 1 1 {", b"7 1 1 1 []", b'x 1 1 1 {"actor":1}', b"\xff"])
def test_an_unreadable_entry_is_skipped(store: KeyspaceStore, raw: bytes) -> None:
    audit.record(store, Event("down", {}))
    store.space.call("RPUSH", KEY, raw)
    audit.record(store, Event("up", {}))
    assert [what for _, what, _ in shown(store)] == ["down", "up"]


def test_long_words_are_cut(store: KeyspaceStore) -> None:
    audit.record(store, Event("cancel", {"id": "x" * 5000}, "y" * 5000))
    (entry,) = audit.read(store)
    assert (len(entry.object["id"]) < 150, 1000 <= len(entry.reason) < 1050) == (True, True)
