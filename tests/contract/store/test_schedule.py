"""What the store keeps about the schedule: pauses and last runs, and how both are deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qd.drivers.keyspace import keys
from qd.store import controls, schedule
from qd.store.base import KeyspaceStore
from qd.store.schedule import Last
from tests.contract.spaces import Stand
from tests.support.waiting import eventually


@pytest.fixture
def store(stand: Stand) -> Iterator[KeyspaceStore]:
    found = stand.store()
    yield found
    for key in (keys.SCHEDULE_LAST, keys.SCHEDULE_SKIPPED, keys.SCHEDULE_PAUSED, keys.TICKS):
        found.space.call("DEL", f"app_{key}")


def ran(at: float, outcome: schedule.Outcome = "done") -> Last:
    return Last(at, at + 0.25, at + 1, outcome, "app-1", "why")


# -- pauses


def test_entries_are_paused_and_resumed_by_name(store: KeyspaceStore) -> None:
    note = schedule.pause(store, ["a", "b"], by="ana@app-1", reason="upgrade")
    assert (note.by, note.reason, note.until) == ("ana@app-1", "upgrade", None)
    assert abs((note.at or 0) - store.now()) < 30
    assert schedule.paused(store) == {"a": note, "b": note}
    assert schedule.resume(store, ["a", "c"]) == {"a": note}
    assert schedule.paused(store) == {"b": note}
    assert schedule.resume(store, ["b"]) == {"b": note}
    assert schedule.paused(store) == schedule.resume(store, []) == {}


def test_a_pause_of_all_is_separate_from_those_of_single_entries(store: KeyspaceStore) -> None:
    one, every = schedule.pause(store, ["a"], by="x"), schedule.pause(store, [schedule.ALL], by="y")
    notes = schedule.paused(store)
    assert notes == {"a": one, "*": every}
    assert schedule.pause_of(notes, "b") == every
    schedule.resume(store, [schedule.ALL])
    assert schedule.pause_of(schedule.paused(store), "b") is None
    assert schedule.pause_of(schedule.paused(store), "a") == one


def test_a_pause_with_an_end_expires(store: KeyspaceStore) -> None:
    note = schedule.pause(store, ["a"], by="x", seconds=0.2)
    assert note.until is not None
    assert schedule.paused(store, note.until - 0.1) == {"a": note}
    assert schedule.paused(store, note.until) == {}
    eventually(lambda: schedule.paused(store) == {}, 20)
    assert schedule.resume(store, ["a"]) == {}


def test_a_pause_written_by_another_program_has_no_name(store: KeyspaceStore) -> None:
    store.space.call("HSET", f"app_{keys.SCHEDULE_PAUSED}", "a", "1")
    assert schedule.paused(store) == {"a": controls.Pause()}


# -- last runs


def test_a_skipped_tick_does_not_hide_the_last_run(store: KeyspaceStore) -> None:
    schedule.note_each(store, {"a": ran(1000)})
    schedule.note_each(store, {"a": ran(1060, "skipped")})
    assert schedule.last(store) == {"a": ran(1000)}
    assert schedule.skipped(store) == {"a": ran(1060, "skipped")}
    assert schedule.last(store)["a"].late == 0.25
    schedule.note_each(store, {"a": ran(1120, "failed"), "b": ran(1120, "sent"), "c": ran(1120, "skipped")})
    assert {name: one.outcome for name, one in schedule.last(store).items()} == {"a": "failed", "b": "sent"}


def test_invalid_notes_are_ignored(store: KeyspaceStore) -> None:
    for field, raw in {"a": "1", "b": "{", "c": '{"tick":1}', "d": "[" * 9999}.items():
        store.space.call("HSET", f"app_{keys.SCHEDULE_LAST}", field, raw)
    schedule.note_each(store, {"e": ran(1)})
    assert schedule.last(store) == {"e": ran(1)}


def test_the_last_tick_is_read_from_each_field(store: KeyspaceStore) -> None:
    for field, raw in {"a": "1700000000250 * * * * * UTC", "b": "x", "h c": "1700000000000 e5", "d": ""}.items():
        store.space.call("HSET", f"app_{keys.TICKS}", field, raw)
    assert schedule.ticked(store) == {"a": 1700000000.25, "h c": 1700000000.0}


# -- deleting


def test_notes_of_undeclared_entries_are_deleted_after_400_days(store: KeyspaceStore) -> None:
    now = store.now()
    long_ago, young = now - 401 * 86400, now - 399 * 86400
    schedule.note_each(store, {"declared": ran(long_ago), "gone": ran(long_ago), "young": ran(young)})
    schedule.note_each(store, {"gone": ran(long_ago, "skipped")})
    store.space.call("HSET", f"app_{keys.SCHEDULE_LAST}", "unreadable", "{")
    for name, at in (("*", long_ago), ("declared", long_ago), ("gone", long_ago), ("young", young)):
        store.space.call("HSET", f"app_{keys.SCHEDULE_PAUSED}", name, f'{{"at": {at}}}')
    store.space.call("HSET", f"app_{keys.SCHEDULE_PAUSED}", "over", f'{{"at": 1, "until": {now - 1}}}')
    assert schedule.sweep(store, ["declared"], now) == 5
    assert set(schedule.last(store)) == {"declared", "young"}
    assert schedule.skipped(store) == {}
    assert set(store.fields(keys.SCHEDULE_PAUSED)) == {"*", "declared", "young"}


@pytest.mark.parametrize("stand", ["redis", "sqlite"], indirect=True)  # the same limit of Lua everywhere
def test_more_fields_than_a_script_can_unpack(store: KeyspaceStore) -> None:
    lasts = {f"e{n}": ran(0) for n in range(9000)}
    schedule.note_each(store, lasts)
    assert len(schedule.last(store)) == 9000
    assert schedule.sweep(store, [], store.now()) == 9000
    assert schedule.last(store) == {}
