"""Statistics on each kind of keyspace: every write is added once, whatever happens to the keeper or its connection.
Rates are computed from the minutes that keepers write."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace import keys
from qd.drivers.types import Sizes
from qd.errors import ConnectionLost, ServerRefused
from qd.keeper.report import Statistics
from qd.keeper.servers import ControlConnection
from qd.log import Log
from qd.master.code import ChildContext
from qd.process.counters import C
from qd.process.scoreboard import Scoreboard
from qd.store import statistics
from qd.store.base import KeyspaceStore
from qd.store.statistics import BOUNDS, Depth, History, Name, Rate, quantile, text_of_depth, text_of_numbers
from tests.contract.spaces import Observer

pytestmark = pytest.mark.leaves("app_qd:{stats}:*")
MAIL = Name("main", "mail", "welcome")
WAITED, RAN = 9 + 11, 33 + 7  # about 2 s and 128 ms


class Host:
    """A master's shared memory and its keeper. lose: the reply of a write is lost; refuse: the server refuses it."""

    def __init__(self, store: KeyspaceStore, token: str = "Tok3n") -> None:
        self.store, self.lose, self.refuse = store, False, False
        self.sizes = Sizes(ready=7, delayed=2, reserved=1, failed=3, oldest_age=4.5)
        self.lines = list[bytes]()
        self.context = ChildContext(Scoreboard(), cast(Any, None), token, 1, Log("keeper", write=self.lines.append))
        self.keeper()

    def keeper(self) -> None:
        """A new one."""
        queue = SimpleNamespace(settings=SimpleNamespace(name="main"), sizes=lambda name: self.sizes)
        control = SimpleNamespace(step=self._step)
        log = self.context.log
        self.statistics = Statistics(
            cast(KeeperConnector, queue), ["mail"], cast(ControlConnection, control), self.context, log
        )

    def _step(self, script: Any, names: list[str], *args: Any) -> Any:
        if self.refuse:
            raise ServerRefused("OOM command not allowed")
        reply = self.store.space.run(script, [self.store.prefix + name for name in names], args)
        if self.lose:
            raise ConnectionLost("gone")
        return reply

    def count(self, job: str = "welcome", outcome: C = C.DONE, slot: int = 1) -> None:
        own = self.context.board.counters.slot(slot)
        row = own.started("mail", job, 3_000_000)
        own.ended(row, outcome, 1500)

    def write(self, at: float | None = None) -> None:
        self.statistics._due = 0.0
        self.statistics.write(self.store.now() if at is None else at)

    def done(self) -> dict[str, int]:
        return {name.job: numbers.done for name, numbers in statistics.totals(self.store).items()}


@pytest.fixture
def host(store: KeyspaceStore) -> Host:
    return Host(store)


def test_writes_add_up_to_totals_and_minutes(host: Host, store: KeyspaceStore) -> None:
    began = store.now()
    host.count()
    host.write()
    host.count(outcome=C.FAILED, slot=2)
    host.count(job="other")
    host.write()
    host.write()
    total = statistics.totals(store)
    assert set(total) == {MAIL, MAIL._replace(job="other")}
    assert (total[MAIL].started, total[MAIL].done, total[MAIL].failed) == (2, 1, 1)
    assert (total[MAIL].wait_ms, total[MAIL].run_ms) == (6000, 3)
    assert (quantile(total[MAIL].wait, 0.5), quantile(total[MAIL].run, 0.99)) == (BOUNDS[12], BOUNDS[1])
    minutes = statistics.periods(store, began, store.now()).values()
    assert sum(added[MAIL].started for added, _ in minutes if MAIL in added) == 2
    (depth, *_) = [depths[Name("main", "mail", "")] for _, depths in minutes]
    assert depth[:5] == (7, 2, 1, 3, 4.5)
    assert began - 1 < (depth.at or 0.0) <= store.now()


def test_a_write_whose_reply_is_lost_is_not_added_twice(host: Host) -> None:
    host.count()
    host.lose = True
    with pytest.raises(ConnectionLost):
        host.write()
    host.count()
    host.lose = False
    host.keeper()
    host.write()
    assert host.done() == {"welcome": 1}
    host.write()
    assert host.done() == {"welcome": 2}


def test_a_refusal_is_logged_once_and_loses_nothing(host: Host) -> None:
    host.refuse = True
    host.count()
    host.write()
    host.count()
    host.write()
    assert [line for line in host.lines if b"statistics.refused" in line] == host.lines[:1]
    host.refuse = False
    host.write()
    host.write()
    assert (host.done(), len(host.lines)) == ({"welcome": 2}, 2)


def test_masters_are_added(store: KeyspaceStore) -> None:
    for token in ("Tok3nA", "Tok3nB"):
        one = Host(store, token)
        one.count()
        one.write()
    assert one.done() == {"welcome": 2}


def test_names_beyond_the_limit_are_added_to_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qd.keeper.report.MOST", 3)
    for number in range(6):
        host.count(job=f"job{number}")
        host.write()
    found = host.done()
    assert (found.pop("other"), len(found)) == (3, 3)
    host.count(job="job0")
    host.count(job="job5")
    host.write()
    assert (host.done()["job0"], host.done()["other"]) == (2, 4)


def test_every_key_expires(host: Host, observer: Observer) -> None:
    host.count()
    host.write()
    names = observer.names()
    assert len(names) == 6
    assert all(observer.call("PTTL", name) > 0 for name in names)


def test_formats_that_are_not_known_are_skipped(host: Host, observer: Observer) -> None:
    host.count()
    host.write()
    observer.call("HSET", f"app_{keys.STATS_TOTAL}", "a\x1fb\x1fc", "2 anything")
    assert host.done() == {"welcome": 1}


@pytest.mark.parametrize(("buckets", "q", "bound"), [([0, 0], 0.5, None), ([1, 1], 0.5, 0.001), ([0, 3], 0.0, 0.002)])
def test_a_quantile_is_the_upper_bound_of_its_bucket(buckets: list[int], q: float, bound: float | None) -> None:
    assert quantile(buckets, q) == bound


# -- rates


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
    for back in range(1, 7):
        minute(store, this - back, 600, 1000 + 100 * back)
    rate = rate_of(store)
    assert rate.growth == -100
    assert 500 <= rate.leaves <= 600  # the current minute has begun
    assert rate.enters == pytest.approx(rate.leaves - 100)
    assert rate.empty_in(Sizes(500, 50, 0, 9, None)) == pytest.approx(60 * 550 / 100)
    assert rate.empty_in(Sizes(0, 0, 0, 9, None)) is None
    assert (rate.wait_p95, rate.run_p95) == (2.048, 0.128)


def test_a_queue_that_grows_is_never_empty(store: KeyspaceStore) -> None:
    this = int(store.now() // 60)
    for back in range(1, 6):
        minute(store, this - back, 10, 1000 - 100 * back)
    rate = rate_of(store)
    assert (rate.growth, rate.empty_in(Sizes(500, 50, 0, 9, None))) == (100, None)
    assert rate.enters == pytest.approx(rate.leaves + 100)


def test_rates_of_the_first_seconds_count_what_came_and_ended(host: Host, store: KeyspaceStore) -> None:
    """On a new server, as on a busy one: all of it is in the minute that has begun, or in two."""
    now = store.now()
    host.sizes = Sizes(0, 0, 0, 0, None)
    host.write(now - 40)
    for _ in range(20):
        host.count()
    host.sizes = Sizes(50, 5, 1, 0, 4.5)
    host.write(now - 10)
    host.write(now)
    rate = rate_of(store)
    assert rate.ended == 20
    assert [rate.leaves, rate.growth, rate.enters] == pytest.approx([jobs / 40 * 60 for jobs in (20, 56, 76)])


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
