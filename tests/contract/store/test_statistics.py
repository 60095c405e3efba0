"""Statistics on each kind of keyspace: every write is added once, whatever happens to the keeper or its connection."""

from __future__ import annotations

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
from qd.store.statistics import BOUNDS, Name, quantile
from tests.contract.spaces import Observer

pytestmark = pytest.mark.leaves("app_qd:{stats}:*")
MAIL = Name("main", "mail", "welcome")


class Host:
    """A master's shared memory and its keeper. lose: the reply of a write is lost; refuse: the server refuses it."""

    def __init__(self, store: KeyspaceStore, token: str = "Tok3n") -> None:
        self.store, self.lose, self.refuse = store, False, False
        self.lines = list[bytes]()
        self.context = ChildContext(Scoreboard(), cast(Any, None), token, 1, Log("keeper", write=self.lines.append))
        self.keeper()

    def keeper(self) -> None:
        """A new one."""
        sizes = Sizes(ready=7, delayed=2, reserved=1, failed=3, oldest_age=4.5)
        queue = SimpleNamespace(settings=SimpleNamespace(name="main"), sizes=lambda name: sizes)
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

    def write(self) -> None:
        self.statistics._due = 0.0
        self.statistics.write(self.store.now())

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
    minutes = statistics.minutes(store, began, store.now()).values()
    assert sum(added[MAIL].started for added, _ in minutes if MAIL in added) == 2
    (depth, *_) = [depths[Name("main", "mail", "")] for _, depths in minutes]
    assert depth == (7, 2, 1, 3, 4.5)


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
    assert len(names) == 5
    assert all(observer.call("PTTL", name) > 0 for name in names)


def test_formats_that_are_not_known_are_skipped(host: Host, observer: Observer) -> None:
    host.count()
    host.write()
    observer.call("HSET", f"app_{keys.STATS_TOTAL}", "a\x1fb\x1fc", "2 anything")
    assert host.done() == {"welcome": 1}


@pytest.mark.parametrize(("buckets", "q", "bound"), [([0, 0], 0.5, None), ([1, 1], 0.5, 0.001), ([0, 3], 0.0, 0.002)])
def test_a_quantile_is_the_upper_bound_of_its_bucket(buckets: list[int], q: float, bound: float | None) -> None:
    assert quantile(buckets, q) == bound
