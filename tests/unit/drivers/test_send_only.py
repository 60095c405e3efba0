"""driver = "failover": jobs go to the first connection that accepts them. The servers here are fakes."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qd import Qd, config
from qd.config.settings import ConnectionSettings
from qd.drivers import send_only
from qd.drivers.base import Connector
from qd.drivers.send_only import FailoverQueue, SendingOnly
from qd.drivers.types import Outgoing
from qd.errors import ConfigError, ConnectionLost, DeclarationError, ServerBusy, ServerRefused
from qd.events import QueueFailedOver


class Made(SendingOnly):
    """Accepts jobs until `error` is set."""

    def __init__(self, at: ConnectionSettings) -> None:
        super().__init__(at)
        self.took: list[Outgoing] = []
        self.asked = 0
        self.error: Exception | None = None

    def take(self, job: Outgoing) -> str | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.took.append(job)
        return None


class Shop:
    def __init__(self, folder: Path, more: str = "") -> None:
        parts = "".join(f'[connections.{name}]\ndriver = "made"\n' for name in "abc")
        both = '[connections.all]\ndriver = "failover"\nconnections = ["a", "b", "c"]\n'
        (folder / "qd.toml").write_text(f'[qd]\ndefault = "all"\n{parts}{both}{more}')
        self.app = Qd()
        self.app.settings = config.load(folder / "qd.toml", environ={})
        self.app.extend("made", Made)
        self.failovers: list[tuple[str, str]] = []
        self.app.on(QueueFailedOver)(lambda event: self.failovers.append((event.connection, str(event.error))))
        made: Any = self.app.connections.get("all")
        self.all = made
        self.parts: list[Any] = list(self.all.parts)

        @self.app.job("work")
        def work(n: int = 0) -> None: ...

        self.work = work

    def took(self) -> list[int]:
        return [len(part.took) for part in self.parts]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock that times the rest of a failed connection; the test advances it."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(send_only, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


@pytest.fixture
def shop(tmp_path: Path, clock: SimpleNamespace) -> Shop:
    return Shop(tmp_path)


def test_jobs_go_to_the_first_connection_that_accepts_them(shop: Shop) -> None:
    shop.work.dispatch()
    shop.parts[0].error = ConnectionLost("away")
    shop.work.using(delay=5).dispatch()
    shop.parts[1].error = ServerBusy("full")
    shop.app.dispatch(shop.work.bind(), shop.work.bind())
    assert shop.took() == [1, 1, 2]
    assert shop.parts[1].took[0].delay == 5


def test_a_change_of_connection_is_logged_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "qd.failover")
    shop.parts[0].error = ConnectionLost("away")
    for _ in range(3):
        shop.work.dispatch()
    assert shop.failovers == [("a", "away")]
    shop.parts[0].error = None
    shop.all._rests.clear()
    for _ in range(3):
        shop.work.dispatch()
    assert shop.failovers == [("a", "away")]
    assert caplog.messages == ["jobs for 'all' go to 'b': 'a' fails: away", "jobs for 'all' go to 'a' again"]


def test_a_failed_connection_is_tried_last_for_a_while(shop: Shop, clock: SimpleNamespace) -> None:
    shop.parts[0].error = ConnectionLost("away")
    for _ in range(4):
        shop.work.dispatch()
    clock.now += send_only.REST - 0.1
    shop.work.dispatch()
    assert shop.parts[0].asked == 1
    clock.now += 0.2
    shop.work.dispatch()
    assert shop.parts[0].asked == 2


def test_all_failed_connections_are_named(shop: Shop) -> None:
    for part, word in zip(shop.parts, ("away", "gone", "lost"), strict=True):
        part.error = ConnectionLost(word)
    with pytest.raises(ConnectionLost, match="no connection of 'all' takes jobs: a: away; b: gone; c: lost"):
        shop.work.dispatch()
    shop.parts[2].error = None
    shop.work.dispatch()
    assert shop.took() == [0, 0, 1]


def test_a_job_refused_by_one_server_is_not_offered_to_another(shop: Shop) -> None:
    shop.parts[0].error = ServerRefused("no")
    with pytest.raises(ServerRefused):
        shop.work.dispatch()
    assert shop.took() == [0, 0, 0]


def test_jobs_with_relations_go_to_the_first_connection_only(shop: Shop) -> None:
    shop.parts[0].error = ConnectionLost("away")
    for options in ({"unique": "x"}, {"key": "y", "delay": 5}):
        with pytest.raises(ConnectionLost, match="away"):
            shop.work.using(**options).dispatch()
    assert shop.took() == [0, 0, 0]


REFUSED = [
    ("[connections.x]\ndriver = 'failover'", "connection 'x' (failover) has no connections"),
    ("[connections.x]\ndriver = 'failover'\nconnections = []", "'x' (failover) has no connections"),
    ("[connections.x]\ndriver = 'failover'\nconnections = ['a', 'q']", "unknown connection 'q' in connections of 'x'"),
    ("[connections.x]\ndriver = 'failover'\nconnections = ['x']", "'x' (failover) contains itself"),
    (
        "[connections.x]\ndriver = 'failover'\nconnections = ['y']\n"
        "[connections.y]\ndriver = 'failover'\nconnections = ['x']",
        "contains itself",
    ),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_an_invalid_failover_connection_is_refused_at_the_start(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Shop(tmp_path, more)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_control_defaults_to_the_first_connection(shop: Shop) -> None:
    assert shop.app.settings.control == "a"


# -- custom drivers


def test_a_custom_driver_gets_the_settings_of_its_connection(tmp_path: Path) -> None:
    shop = Shop(tmp_path, '[connections.mine]\ndriver = "mine"\nqueue = "q"\nprefix = "p:"\n')
    made: list[ConnectionSettings] = []

    def make(at: ConnectionSettings) -> Made:
        made.append(at)
        return Made(at)

    shop.app.extend("mine", make)
    shop.work.using(connection="mine").dispatch()
    shop.work.using(connection="mine").dispatch()
    assert [(at.name, at.driver, at.queue, at.prefix) for at in made] == [("mine", "mine", "q", "p:")]


def test_a_class_with_only_the_required_methods_is_a_driver(tmp_path: Path) -> None:
    """Its constructor takes the settings."""

    class Spool(SendingOnly):
        def take(self, job: Outgoing) -> None: ...

    shop = Shop(tmp_path, '[connections.mine]\ndriver = "spool"\n')
    shop.app.extend("spool", Spool)
    made: Any = shop.app.connections.get("mine")
    assert (dict(made.limits), made.whole) == ({}, shop.app.settings)


@pytest.mark.parametrize(("made", "lacks"), [(None, "settings, limits"), (object(), "push, later")])
def test_a_driver_without_a_connector_is_refused_with_the_missing_methods(
    tmp_path: Path, made: object, lacks: str
) -> None:
    shop = Shop(tmp_path, '[connections.mine]\ndriver = "mine"\n')
    shop.app.extend("mine", lambda at: made)
    with pytest.raises(
        ConfigError, match=f"driver 'mine' of connection 'mine' made .* no connector: it lacks .*{lacks}"
    ):
        shop.work.using(connection="mine").dispatch()


def test_an_unknown_driver_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    shop = Shop(tmp_path, '[connections.mine]\ndriver = "mad"\n')
    with pytest.raises(ConfigError) as raised:
        shop.work.using(connection="mine").dispatch()
    assert "unknown driver 'mad' of connection 'mine' (did you mean 'made'?) (known: redis, " in str(raised.value)
    assert ", failover, made; " in str(raised.value)


@pytest.mark.parametrize("word", ["redis", "sync", "failover", "null", "made"])
def test_a_driver_name_that_is_taken_is_refused(shop: Shop, word: str) -> None:
    with pytest.raises(DeclarationError, match=f"there is already a driver '{word}'"):
        shop.app.extend(word, Made)


def test_a_factory_is_a_driver(shop: Shop) -> None:
    wrong: Any = "jobs:make"
    with pytest.raises(DeclarationError, match="is not callable"):
        shop.app.extend("mine", wrong)


def test_parts_of_a_failover_connection_are_opened_once(shop: Shop) -> None:
    assert isinstance(shop.all, FailoverQueue)
    again: Connector = shop.app.connections.get("all")
    assert again is shop.all
