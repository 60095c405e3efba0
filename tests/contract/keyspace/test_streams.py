"""Streams of events on Redis and on databases: numbers, bounds, and calls that are repeated."""

from __future__ import annotations

import json

import pytest

from qd.drivers.keyspace.records import KeptJobs
from qd.errors import ServerRefused
from qd.worker.emitter import MOST_BYTES, MOST_EVENTS, OpenStream
from tests.contract.spaces import Observer, Stand

pytestmark = pytest.mark.leaves("app_qd:job:j:events")
KEY = "app_qd:job:j:events"


@pytest.fixture
def jobs(stand: Stand) -> KeptJobs:
    found = KeptJobs(stand.open(), "app_")
    found.space.call("DEL", KEY)
    return found


def emit(jobs: KeptJobs, mark: str, first: int, *data: object, base: int = -1, ttl: int = 60) -> int:
    """Emit events of the attempt `mark`, the first of which is at the position `first`. Returns their base."""
    stream = OpenStream("j", ttl)
    stream.base = base
    (reply,) = jobs.emit(
        [("j", stream.args(mark, [(first + n, json.dumps(each).encode()) for n, each in enumerate(data)]))]
    )
    assert isinstance(reply, bytes)
    return int(reply)


def events(jobs: KeptJobs, since: int = 0) -> list[tuple[int, object]]:
    return [(event.number, event.data) for event in jobs.events("j", since)]


def test_events_are_numbered_over_all_attempts(jobs: KeptJobs, observer: Observer) -> None:
    assert events(jobs) == []
    assert emit(jobs, "a.1.1.1", 1, "one", {"two": 2}) == 0
    assert emit(jobs, "a.1.1.1", 3, None, base=0) == 0
    assert emit(jobs, "b.1.7.2", 1, "again") == 3
    assert emit(jobs, "b.1.7.2", 2, "more", base=3) == 3
    assert events(jobs) == [(1, "one"), (2, {"two": 2}), (3, None), (4, "again"), (5, "more")]
    assert (events(jobs, 3), events(jobs, 5), events(jobs, 1000)) == ([(4, "again"), (5, "more")], [], [])
    seconds, micros = observer.call("TIME")
    assert abs(jobs.events("j", 4)[0].at - int(seconds) - int(micros) / 1e6) < 60
    assert 0 < observer.call("PTTL", KEY) <= 60_000


def test_a_repeated_call_appends_nothing_twice(jobs: KeptJobs) -> None:
    emit(jobs, "a.1.1.1", 1, "one", "two")
    assert emit(jobs, "a.1.1.1", 1, "one", "two", "three") == 0
    assert emit(jobs, "a.1.1.1", 3, "three", base=0) == 0
    assert events(jobs) == [(1, "one"), (2, "two"), (3, "three")]


def test_events_that_never_arrived_leave_a_gap(jobs: KeptJobs) -> None:
    emit(jobs, "a.1.1.1", 1, "one")
    emit(jobs, "a.1.1.1", 5, "five", base=0)
    assert emit(jobs, "b.1.1.2", 4, "first of the second attempt that arrived") == 2
    assert [number for number, _ in events(jobs)] == [1, 5, 6]
    assert [number for number, _ in events(jobs, 2)] == [5, 6]


def test_numbers_go_on_within_an_attempt_after_the_server_has_lost_the_stream(jobs: KeptJobs) -> None:
    base = emit(jobs, "a.1.1.1", 1, "one", "two")
    jobs.space.call("DEL", KEY)
    emit(jobs, "a.1.1.1", 3, "three", base=base)
    assert events(jobs) == [(3, "three")]


def test_an_attempt_whose_lease_was_lost_does_not_repeat_numbers(jobs: KeptJobs) -> None:
    emit(jobs, "a.1.1.1", 1, "one")
    emit(jobs, "b.1.1.2", 1, "other")
    emit(jobs, "a.1.1.1", 2, "late", base=0)
    emit(jobs, "b.1.1.2", 2, "more", base=1)
    assert events(jobs) == [(1, "one"), (2, "other"), (3, "late"), (4, "more")]


def test_the_oldest_events_are_deleted(jobs: KeptJobs, observer: Observer) -> None:
    base = -1
    for first in range(1, MOST_EVENTS + 101, 100):
        base = emit(jobs, "a.1.1.1", first, *range(first, first + 100), base=base)
    assert observer.call("LLEN", KEY) == MOST_EVENTS
    assert events(jobs)[0] == (101, 101)
    assert events(jobs, 1050) == [(n, n) for n in range(1051, 1101)]


def test_a_stream_has_at_most_a_megabyte(jobs: KeptJobs) -> None:
    text, base = "x" * 16_000, -1
    for first in range(1, 101):
        base = emit(jobs, "a.1.1.1", first, text, base=base)
    kept = events(jobs)
    size = len(text) + 2
    assert len(kept) == MOST_BYTES // size
    assert [number for number, _ in kept] == list(range(101 - MOST_BYTES // size, 101))


@pytest.mark.parametrize("entry", ["7 5 now m 3 {}", "7 5 1.0 m 3 {", "no entry"])
def test_a_stream_that_qd_did_not_write_is_one_clear_error(jobs: KeptJobs, observer: Observer, entry: str) -> None:
    observer.call("RPUSH", KEY, entry)
    with pytest.raises(ServerRefused):
        jobs.events("j", 0)
    observer.call("DEL", KEY)
