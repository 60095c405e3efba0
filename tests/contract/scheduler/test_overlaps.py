"""Overlap leases on a real server: renewed during a run, freed after it, and reported if lost."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from qd.errors import ConnectionLost
from qd.log import Log
from qd.schedule.entry import Entry, ShellTask
from qd.schedule.timing import Every
from qd.scheduler import runs
from qd.scheduler.runs import Overlaps
from qd.store.base import KeyspaceStore
from tests.support.waiting import eventually

ENTRY = Entry("nightly", ShellTask("true"), Every(60), alone=True)
OTHER = Entry("hourly", ShellTask("true"), Every(60), alone=True)
KEY = "qd:overlap:nightly"


@dataclass
class Host:
    """The leases of one scheduler, and the reported losses."""

    store: KeyspaceStore
    name: str
    seconds: float = 30.0
    lost_reasons: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.overlaps = Overlaps(self.store, self.name, self.seconds, cast(Log, self))

    def error(self, event: str, *, entry: str, reason: str = "", error: str = "") -> None:
        """In place of the log."""
        {"schedule.lease_lost": self.lost_reasons, "schedule.refused": self.refused}[event].append(reason or error)


def owner(store: KeyspaceStore) -> dict[str, object]:
    (found,) = store.get(KEY)
    return json.loads(found) if found else {}


def test_an_expired_lease_is_acquired_again_and_reported(store: KeyspaceStore):
    one = Host(store, "web1", 0.05)
    assert one.overlaps.take(ENTRY) is None
    run = one.overlaps.begun("nightly", 412)
    eventually(lambda: not owner(store), 20)
    one.overlaps.renew()
    assert one.lost_reasons == ["it expired, and was taken again"]
    one.overlaps.end(run)
    one.overlaps.renew()
    assert not owner(store)


def test_an_expired_lease_acquired_by_another_host_stays_with_it(store: KeyspaceStore):
    one, other = Host(store, "web1", 0.05), Host(store, "web2")
    assert one.overlaps.take(ENTRY) is None
    run = one.overlaps.begun("nightly", 412)
    eventually(lambda: other.overlaps.take(ENTRY) is None, 20)
    others = other.overlaps.begun("nightly", 77)
    other.overlaps.renew()
    one.overlaps.renew()
    assert len(one.lost_reasons) == 1
    assert one.lost_reasons[0].startswith("it expired, and web2 (pid 77) since ")
    one.overlaps.end(run)
    one.overlaps.renew()
    assert owner(store)["pid"] == 77
    other.overlaps.end(others)
    other.overlaps.renew()
    assert not owner(store)
    assert other.lost_reasons == []


def test_a_lease_is_freed_once_the_server_is_reachable_again(store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch):
    one = Host(store, "web1")
    assert one.overlaps.due_in == float("inf")
    assert one.overlaps.take(ENTRY) is None
    run = one.overlaps.begun("nightly", 412)
    one.overlaps.renew()
    assert 0 < one.overlaps.due_in <= 10
    one.overlaps.end(run)
    assert one.overlaps.due_in == 0
    monkeypatch.setattr(runs, "AGAIN", 60.0)
    with monkeypatch.context() as patched:
        patched.setattr(store, "step", lost)
        with pytest.raises(ConnectionLost):
            one.overlaps.renew()
    assert 0 < one.overlaps.due_in <= runs.AGAIN  # not immediately again, to avoid a busy loop
    assert owner(store)
    one.overlaps.renew()
    assert not owner(store)
    assert one.overlaps.due_in == float("inf")


def test_a_run_that_ends_during_a_renewal_with_a_lost_reply_frees_its_lease(
    store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch
):
    one, real = Host(store, "web1"), store.step
    assert one.overlaps.take(ENTRY) is None
    run = one.overlaps.begun("nightly", 412)
    monkeypatch.setattr(store, "step", lambda *words: lost(real(*words)))
    with pytest.raises(ConnectionLost):
        one.overlaps.renew()
    monkeypatch.undo()
    assert owner(store)["pid"] == 412  # the server executed it, and the reply was lost
    one.overlaps.end(run)
    one.overlaps.renew()
    assert not owner(store)


def test_a_run_with_a_cleared_lease_does_not_free_that_of_the_next_run(store: KeyspaceStore):
    one = Host(store, "web1")
    assert one.overlaps.take(ENTRY) is None
    first = one.overlaps.begun("nightly", 411)
    one.overlaps.renew()
    store.take(KEY)
    assert one.overlaps.take(ENTRY) is None
    second = one.overlaps.begun("nightly", 412)
    one.overlaps.renew()
    one.overlaps.end(first)
    one.overlaps.renew()
    assert owner(store)["pid"] == 412
    one.overlaps.end(second)
    one.overlaps.renew()
    assert not owner(store)


def test_a_rejected_lease_is_reported_once_and_the_others_are_renewed(
    store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch
):
    one, passed = Host(store, "web1"), [0.0]
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(runs, "time", clock)
    assert one.overlaps.take(ENTRY) is None
    assert one.overlaps.take(OTHER) is None
    both = [one.overlaps.begun(name, 412) for name in ("nightly", "hourly")]
    store.take(KEY)
    store.token(KEY)  # a list
    for _ in range(3):
        passed[0] += one.overlaps.due_in
        assert one.overlaps.due_in == 0
        one.overlaps.renew()
    assert json.loads(store.get("qd:overlap:hourly")[0] or b"{}")["pid"] == 412
    assert "is refused" in str(one.overlaps.take(ENTRY))
    (why,) = one.refused
    assert KEY in why
    assert "WRONGTYPE" in why
    for run in both:
        one.overlaps.end(run)
    one.overlaps.renew()
    assert one.overlaps.due_in == float("inf")
    assert store.pop(KEY, 1)


def test_a_postponed_renewal_is_not_due_immediately(store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch):
    one = Host(store, "web1")
    monkeypatch.setattr(runs, "AGAIN", 60.0)
    assert one.overlaps.take(ENTRY) is None
    one.overlaps.end(one.overlaps.begun("nightly", 412))
    assert one.overlaps.due_in == 0
    one.overlaps.postpone()
    assert 0 < one.overlaps.due_in <= runs.AGAIN
    one.overlaps.renew()


def lost(*given: object) -> object:
    raise ConnectionLost("away")
