"""Rates on each kind of keyspace, computed from the minutes that keepers write."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from qd.drivers.keyspace import keys
from qd.store.base import KeyspaceStore
from qd.store.rates import History, Rate
from qd.store.statistics import Depth, Name, text_of_depth, text_of_numbers

pytestmark = pytest.mark.leaves("app_qd:{stats}:*")
WAITED, RAN = 9 + 11, 33 + 7  # about 2 s and 128 ms


def minute(store: KeyspaceStore, number: int, done: int, ready: int, job: str = "welcome") -> None:
    words = [0] * 60
    words[0] = words[1] = words[WAITED] = words[RAN] = done
    set_field(store, keys.stats_minute(number), keys.OF.join(("main", "mail", job)), text_of_numbers(words))
    set_field(
        store, keys.stats_depths(number), keys.OF.join(("main", "mail")), text_of_depth(Depth(ready, 0, 0, 0, 1.0))
    )


def set_field(store: KeyspaceStore, name: str, field: str, value: str) -> None:
    store.space.call("HSET", store.prefix + name, field, value)


def rate_of(store: KeyspaceStore) -> Rate:
    return History(store, 400).refresh().rates()["main", "mail"]


def test_a_queue_that_shrinks_says_when_it_is_empty(store: KeyspaceStore) -> None:
    this = int(store.now() // 60)
    for back in range(1, 6):
        minute(store, this - back, 600, 1000 + 100 * back)
    rate = rate_of(store)
    assert rate.growth == -100
    assert 500 <= rate.leaves <= 600  # the current minute has begun
    assert rate.enters == pytest.approx(rate.leaves - 100)
    assert rate.eta == pytest.approx(60 * 1100 / 100)
    assert (rate.wait_p95, rate.run_p95) == (2.048, 0.128)


def test_a_queue_that_grows_is_never_empty(store: KeyspaceStore) -> None:
    this = int(store.now() // 60)
    for back in range(1, 6):
        minute(store, this - back, 10, 1000 - 100 * back)
    rate = rate_of(store)
    assert (rate.growth, rate.eta) == (100, None)
    assert rate.enters == pytest.approx(rate.leaves + 100)


def test_a_queue_without_statistics_has_no_rate(store: KeyspaceStore) -> None:
    assert History(store, 400).refresh().rates() == {}


def test_points_have_every_minute_that_is_over(store: KeyspaceStore) -> None:
    this = int(store.now() // 60)
    minute(store, this - 4, 5, 9)
    minute(store, this - 4, 7, 9, job="bye")
    history = History(store).refresh()
    points = history.points((this - 6) * 60)
    assert [point.at // 60 for point in points] == [*range(this - 5, int(history.now // 60))]
    assert [(point.done, point.depth) for point in points][:3] == [(0, None), (12, 9), (0, None)]
    only = history.points((this - 6) * 60, lambda name: name == Name("main", "mail", "bye"))
    assert [point.done for point in only][:3] == [0, 7, 0]
    assert history.total((this - 6) * 60).done == 12


def test_hours_are_added_up_and_compared_with_those_before(store: KeyspaceStore) -> None:
    this = int(store.now() // 3600)
    for back in range(6):
        words = [10 * (back + 1)] * 2 + [0] * 58
        set_field(
            store, keys.stats_hour(this - back), keys.OF.join(("main", "mail", "welcome")), text_of_numbers(words)
        )
    history = History(store, 5 * 3600, 3600).refresh()
    welcome = Name("main", "mail", "welcome")
    assert history.by_name((this - 1) * 3600)[welcome].done == 10 + 20
    assert history.by_name((this - 4) * 3600, (this - 2) * 3600)[welcome].done == 40 + 50
    assert [point.done for point in history.points((this - 4) * 3600)] == [40, 30, 20]
    assert history.total((this - 4) * 3600).done == 150


def test_minutes_that_are_over_are_read_once(store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    history, read = History(store, 3600).refresh(), list[str]()
    fields = store.fields

    def counted(name: str) -> Mapping[str, bytes]:
        read.append(name)
        return fields(name)

    monkeypatch.setattr(store, "fields", counted)
    history.refresh()
    assert 0 < len(read) <= 6
