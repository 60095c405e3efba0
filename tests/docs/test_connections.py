"""docs/connections.md lists the gaps of each connection as the code declares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qd import Qd, config
from qd.drivers.connections import gaps_of
from qd.options.drivers import DRIVERS
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "connections.md"
BEGIN, END = "<!-- limits -->\n", "<!-- end of limits -->"
HEAD = "| connection | what | what that means |\n| --- | --- | --- |\n"
URLS = {
    "redis": "redis://h/0",
    "sentinel": "redis+sentinel://h/s",
    "cluster": "redis+cluster://h",
    "database": "sqlite:///x.sqlite",
    "beanstalkd": "beanstalkd://h",
    "sqs": "sqs://eu-west-1",
}


@pytest.fixture
def app(tmp_path: Path) -> Qd:
    tables = [f'[connections.{name}]\nurl = "{url}"\n' for name, url in URLS.items()]
    tables += [
        f'[connections.{name}]\ndriver = "{name}"\nconnections = ["redis"]\n' for name in ("sync", "null", "failover")
    ]
    (tmp_path / "qd.toml").write_text('[qd]\ndefault = "redis"\n' + "".join(tables))
    app = Qd()
    app.settings = config.load(tmp_path / "qd.toml", environ={})
    return app


def table_of(app: Qd) -> str:
    rows = [
        f"| {name} | {what} | {meaning} |\n"
        for name in app.settings.connections
        for what, meaning in gaps_of(app.settings, name, app.connections.own).items()
    ]
    return HEAD + "".join(rows)


def test_the_gaps_on_the_page_equal_those_in_the_code(app: Qd) -> None:
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table_of(app).strip()


def test_every_driver_is_on_the_page(app: Qd) -> None:
    drivers = {found.driver for found in app.settings.connections.values()}
    assert drivers == {*DRIVERS}


@pytest.mark.parametrize("name", ["redis", "sentinel"])
def test_redis_has_no_gaps(app: Qd, name: str) -> None:
    assert gaps_of(app.settings, name) == {}
