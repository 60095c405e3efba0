"""Mistakes in a connection: `qd work` reports them at its start in one line with exit 78, and retries later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qd.config.load import load
from qd.drivers.connections import loaded, open_queue
from qd.errors import ConfigError
from qd.options.drivers import DRIVERS, OPENED_WITHOUT_APP, extra_of_library
from qd.options.extras import to_install
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.servers.sentinel import Sentinel

AWAY = "redis://127.0.0.1:1/0"
OWN = '[connections.own]\ndriver = "mine"\n'
LOG = re.compile(r"^\S+ \S+ (ERROR|WARNING) .*$", re.MULTILINE)


def error_of(shop: Project, *words: str, **env: str) -> str:
    """Return the only error line of `qd work`, which exits with 78."""
    done = shop.qd("work", *words, seconds=60.0, **env)
    assert done.returncode == 78, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if " ERROR " in line or line.startswith("qd: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


# -- mistakes found before qd connects: connection x, and the error

URLS = [
    ('url = "reddis://h/0"', "unknown kind of url 'reddis:' (did you mean 'redis'"),
    ('url = "redis://h:port/0"', "a Redis url needs a number as port"),
    ('url = "redis://h/0?ssl_ca=x"', "unknown option 'ssl_ca' in a Redis url"),
    ('url = "rediss://h/0?ssl_ca_certs=/nowhere.pem"', "ssl_ca_certs=/nowhere.pem"),
    ('url = "redis+sentinel://s1,s2"', "names no service"),
    ('url = "redis+sentinel://s1:x/shop"', "'s1:x' is not the host:port of a sentinel"),
    ('url = "unix://"', "a unix:// url names the server's socket"),
    ('url = "postgresql://h:port/x"', "the url of a database needs a number as port"),
    ('url = "mysql://h/"', "the url names no database"),
    ('url = "mysql://127.0.0.1:1/x?foo=1"', "unexpected keyword argument 'foo'"),
    ('url = "sqlite://"', "an in-memory SQLite database is private to one connection"),
    (
        'url = "sqlite://jobs.sqlite"',
        "a SQLite url names a file and no host: write three slashes, sqlite:///jobs.sqlite",
    ),
    ('url = "sqlite:////nowhere/x.sqlite"', "the folder /nowhere of this SQLite file does not exist"),
    ('url = "sqlite:///x.sqlite?mode=ro"', "unknown option 'mode' in a SQLite url"),
    ('driver = "redis"\nurl = "sqs://eu-west-1"', "driver 'redis' does not match a url of kind 'sqs:'"),
    ('driver = "redis"', "connection 'x' has no url: set QD_X_URL"),
    ('driver = "kafka"', "unknown driver 'kafka' of connection 'x' (known: redis, "),
    ('driver = "sync"', "`qd work` on connection 'x' (sync): it runs each job where it is dispatched"),
    ('driver = "null"', "`qd work` on connection 'x' (null): it takes jobs and forgets them"),
    ('driver = "failover"\nconnections = ["control"]', "(failover): it is for sending; work on control"),
    ('driver = "failover"', "connection 'x' (failover) has no connections"),
    ('driver = "failover"\nconnections = ["y"]', "unknown connection 'y' in connections of 'x'"),
    ('driver = "failover"\nconnections = ["x"]', "contains itself"),
    ('driver = "mine"', "driver 'mine' of connection 'x' made int, which is no connector: it lacks "),
]


@pytest.fixture
def shop(project: MakeProject) -> Project:
    found = project(jobs='app.extend("mine", lambda at, who: 7)\n')
    found.allowed |= {"x.sqlite", "x.sqlite-wal", "x.sqlite-shm"}
    return found


def connect(shop: Project, table: str, control: str = AWAY) -> None:
    text = f'[qd]\napp = "jobs:app"\ncontrol = "control"\ndefault = "x"\n[connections.control]\nurl = "{control}"\n'
    text += f"[connections.x]\n{table}\n"
    (shop.root / "qd.toml").write_text(text)


@pytest.mark.parametrize(("table", "error"), URLS, ids=[error[:40] for _, error in URLS])
def test_mistakes_in_the_file_are_reported(shop: Project, table: str, error: str) -> None:
    connect(shop, table)
    assert error in error_of(shop, "-w", "1")


def test_a_connection_that_is_not_there_is_refused_with_those_that_are(shop: Project) -> None:
    connect(shop, 'driver = "null"')
    assert "unknown connection 'y' (flag --connection) (known: control, x)" in error_of(shop, "-c", "y")
    assert "(environment QD_CONNECTION) (known: control, x)" in error_of(shop, QD_CONNECTION="y")
    done = shop.quick("status", "-c", "y")
    assert (done.exit_code, "known: control, x" in done.stderr) == (78, True)


def test_a_schedule_is_not_begun_where_its_jobs_cannot_be_sent(project: MakeProject) -> None:
    shop = project(jobs="@app.job('a')\ndef a() -> None: ...\napp.schedule(a.bind(), cron='* * * * *')\n")
    for driver in ("sync", "null"):
        connect(shop, f'driver = "{driver}"')
        done = shop.qd("schedule", "work")
        (line,) = [line for line in done.stderr.splitlines() if " ERROR " in line]
        assert (done.returncode, "Traceback" in done.stderr) == (78, False)
        assert f"entry 'a' of the schedule: connection 'x' ({driver}) only sends jobs" in line
    assert "entry 'a' of the schedule: connection 'x' (null)" in shop.qd("schedule", "run").stderr


def test_a_missing_url_is_no_mistake_of_the_schedule(project: MakeProject) -> None:
    shop = project(jobs="@app.job('a')\ndef a() -> None: ...\napp.schedule(a.bind(), cron='* * * * *')\n")
    connect(shop, 'driver = "redis"')
    assert "app.refused reason=\"connection 'x' has no url: set QD_X_URL" in error_of(shop)
    connect(shop, f'url = "{AWAY}"')
    jobs = shop.root / "jobs.py"
    jobs.write_text(jobs.read_text().replace("job('a')", "job('a', connection='y')"))
    done = shop.qd("schedule", "work")
    assert "unknown connection 'y'" in done.stderr
    assert "jobs.py:" in done.stderr


def test_what_keeps_nothing_is_no_control_connection(shop: Project) -> None:
    connect(shop, 'driver = "null"')
    text = (shop.root / "qd.toml").read_text()
    for control in ("x", "own"):
        (shop.root / "qd.toml").write_text(text.replace('control = "control"', f'control = "{control}"') + OWN)
        assert f"connection '{control}' (" in error_of(shop, "-c", "control")
        assert shop.quick("status").exit_code == 78


def test_the_variable_names_the_default_connection(shop: Project) -> None:
    connect(shop, 'driver = "redis"')
    (shop.root / "qd.toml").write_text((shop.root / "qd.toml").read_text().replace('default = "x"\n', ""))
    assert "`qd work` on connection 'y' (null)" in error_of(
        shop, QD_CONNECTION="y", QD_CONFIG=str(two(shop.root / "qd.toml"))
    )


def two(path: Path) -> Path:
    path.write_text(path.read_text() + '[connections.y]\ndriver = "null"\n')
    return path


# -- libraries that are not installed

NEEDED = [
    ("boto3", 'url = "sqs://eu-west-1"', "sqs"),
    ("greenstalk", 'url = "beanstalkd://127.0.0.1:1"', "beanstalkd"),
    ("sqlalchemy", 'url = "sqlite:///x.sqlite"', "database"),
    ("psycopg", 'url = "postgresql://127.0.0.1:1/x"', "postgres"),
    ("pymysql", 'url = "mysql://127.0.0.1:1/x"', "mysql"),
]


@pytest.mark.parametrize(("library", "table", "extra"), NEEDED, ids=[row[0] for row in NEEDED])
def test_a_library_that_is_not_installed_is_named_with_the_way_to_install_it(
    shop: Project, library: str, table: str, extra: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    connect(shop, table)
    missing = tmp_path_factory.mktemp("missing")
    (missing / f"{library}.py").write_text(
        f'raise ModuleNotFoundError("No module named {library!r}", name={library!r})\n'
    )
    path = f"{missing}:{shop.env()['PYTHONPATH']}"
    error = error_of(shop, "-w", "1", PYTHONPATH=path)
    assert to_install(extra) in error
    assert f"'{library}" in to_install(extra).lower()


def test_every_library_of_an_extra_is_known() -> None:
    assert {row[0]: row[2] for row in NEEDED} == {row[0]: extra_of_library(row[0]) for row in NEEDED}


@pytest.mark.parametrize("driver", OPENED_WITHOUT_APP)
def test_every_driver_can_be_loaded(driver: str) -> None:
    assert callable(loaded(DRIVERS[driver].open))


def test_another_module_that_is_missing_is_no_extra(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        loaded("qd.drivers.nothing:open_queue")


# -- errors of the server


def test_a_wrong_password_is_refused_at_the_start(shop: Project, redis: Client, server: Server) -> None:
    connect(shop, f'url = "redis://nobody:secret99@127.0.0.1:{server.port}/0"')
    error = error_of(shop, "-w", "1")
    assert "connection.refused" in error
    assert "WRONGPASS" in error
    assert "secret99" not in error
    connect(shop, f'url = "{AWAY}"', control=f"redis://nobody:secret99@127.0.0.1:{server.port}/0")
    assert "WRONGPASS" in error_of(shop, "-w", "1")  # though the connection that is worked on is away


def test_a_right_that_is_missing_is_named_at_the_start(shop: Project, redis: Client, server: Server) -> None:
    redis.call("ACL", "SETUSER", "few", "on", ">secret99", "~*", "+@all", "-hset", "-zadd")
    try:
        connect(shop, f'url = "redis://few:secret99@127.0.0.1:{server.port}/0"')
        error = error_of(shop, "-w", "1")
        assert "user 'few' of connection 'x' may not call HSET ZADD: `qd doctor` says" in error
    finally:
        redis.call("ACL", "DELUSER", "few")


def test_a_name_that_no_sentinel_knows_is_refused_at_the_start(shop: Project, sentinel: Sentinel) -> None:
    connect(shop, f'url = "{sentinel.url.replace("/qd/", "/shop/")}"')
    assert "knows no primary called 'shop' (known: qd)" in error_of(shop, "-w", "1")


def test_a_table_that_is_not_there_is_refused_with_the_command_that_makes_it(shop: Project) -> None:
    connect(shop, 'url = "sqlite:///x.sqlite"')
    assert "run `qd migrate`" in error_of(shop, "-w", "1")


def test_a_queue_that_is_not_there_is_refused(shop: Project, sqs: Any, server: Server) -> None:
    connect(shop, f'url = "{sqs.url}"', server.url)
    error = error_of(shop, "-w", "1", "nothere", **sqs.env)
    assert "nothere" in error


def test_a_server_that_is_away_is_waited_for(shop: Project) -> None:
    """It is no mistake in the configuration, and it comes back."""
    connect(shop, 'url = "redis://127.0.0.1:1/0"')
    (shop.root / "qd.toml").write_text((shop.root / "qd.toml").read_text().replace('control = "control"\n', ""))
    work = shop.work("-w", "1")
    work.wait_line("redis.away .*connection refused")
    work.wait_line("master.ready")
    work.stop()


def test_no_message_contains_a_secret(shop: Project) -> None:
    connect(shop, 'url = "redis+sentinel://me:of-the-server@s1,s2/shop?sentinel_pasword=of-the-sentinels"')
    error = error_of(shop, "-w", "1")
    assert "did you mean 'sentinel_password'" in error
    assert not re.search("of-the-server|of-the-sentinels", error)


def test_a_connection_opens_nothing_until_it_is_used(shop: Project) -> None:
    connect(shop, 'url = "redis://127.0.0.1:1/0"')
    settings = load(shop.root / "qd.toml", environ={})
    open_queue(settings, "x").close()
    with pytest.raises(ConfigError):
        open_queue(settings, "y")
