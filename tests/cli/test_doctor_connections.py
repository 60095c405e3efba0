"""`qd doctor` on each kind of connection: its gaps, its servers and its tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from qd.dispatch.sync import LIMITS as SYNC
from qd.drivers.send_only import LIMITS as FAILOVER
from qd.drivers.send_only import NULL_LIMITS as NULL
from qd.drivers.types import Gaps
from tests.cli.conftest import Run, done
from tests.support.project import MakeProject, Project
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.sentinel import Sentinel

EACH = [("sync", SYNC), ("null", NULL), ("failover", FAILOVER)]


@pytest.mark.parametrize(("driver", "limits"), EACH, ids=[row[0] for row in EACH])
def test_the_gaps_of_a_connection_are_listed(project: MakeProject, driver: str, limits: Gaps) -> None:
    shop = project(jobs='@app.job("one")\ndef one() -> None: ...\n')
    more = 'connections = ["redis"]\n' if driver == "failover" else ""
    shop.config(f'[connections.x]\ndriver = "{driver}"\n{more}')
    checks = json.loads(shop.qd("doctor", "--json", QD_CONNECTION="x", QD_CONTROL="redis").stdout)["checks"]
    values = [each["value"] for each in checks if each["what"] == "x.cannot"]
    assert values == [f"{what}: {meaning}" for what, meaning in limits.items()]
    assert not [each for each in checks if each["what"].startswith("x.") and each["sign"] == "fail"]


def test_each_part_of_a_failover_is_checked(project: MakeProject, beanstalkd: Beanstalkd) -> None:
    shop = project(jobs='@app.job("one")\ndef one() -> None: ...\n')
    shop.config(
        f'[connections.tubes]\nurl = "{beanstalkd.url}"\n[connections.x]\ndriver = "failover"\n'
        'connections = ["redis", "tubes"]\n'
    )
    assert findings(shop, "tubes", QD_CONNECTION="x")["tubes.answers"] == ("ok", beanstalkd.url)
    assert shop.qd("config", "check", QD_CONNECTION="x", QD_TUBES_URL="beanstalkd://h:x").returncode == 78


def test_sentinels_that_do_not_answer_are_named(project: MakeProject, sentinel: Sentinel) -> None:
    shop = project(jobs='@app.job("one")\ndef one() -> None: ...\n', url=sentinel.url)
    found = findings(shop, "redis")
    here = f"127.0.0.1:{sentinel.primary.port}"
    assert found["redis.sentinels"] == ("ok", f"all 3 name {here}")
    assert found["redis.replicas"][0] == "warn"
    wants_replicas(sentinel, 1)
    try:
        found = findings(shop, "redis", QD_REDIS_URL=sentinel.url.replace("://", "://127.0.0.1:1,"))
    finally:
        wants_replicas(sentinel, 0)  # later tests use the same servers
    assert found["redis.sentinels"] == ("warn", f"the primary is {here}, and 127.0.0.1:1 connection refused")
    assert "redis.replicas" not in found


def wants_replicas(sentinel: Sentinel, count: int) -> None:
    for node in sentinel.nodes:
        with node.client() as client:
            client.call("CONFIG", "SET", "min-replicas-to-write", count)


def test_a_broker_and_its_control_connection_are_both_checked(project: MakeProject, beanstalkd: Beanstalkd) -> None:
    """The control connection is checked once, under its own name."""
    shop = project(jobs='@app.job("one")\ndef one() -> None: ...\n')
    shop.config(f'[connections.tubes]\nurl = "{beanstalkd.url}"\n')
    env = {"QD_CONNECTION": "tubes", "QD_CONTROL": "redis"}
    assert findings(shop, "tubes", **env)["tubes.answers"] == ("ok", beanstalkd.url)
    assert findings(shop, "redis", **env)["redis.version"][0] == "ok"
    found = findings(shop, "tubes", **env, QD_TUBES_URL="beanstalkd://127.0.0.1:1")
    assert found["tubes.answers"] == ("fail", "beanstalkd at 127.0.0.1:1 does not answer: Connection refused")
    assert "tubes.version" not in found


def test_a_problem_that_only_an_operator_can_fix_exits_with_78(project: MakeProject) -> None:
    shop = project(jobs='@app.job("one")\ndef one() -> None: ...\n')
    shop.config('[connections.x]\nurl = "mysql+nosuch://a/b"\n')
    result = shop.qd("doctor", QD_CONNECTION="x")
    assert result.returncode == 78
    assert "-> `qd work` exits with 78 until then" in result.stdout


def findings(shop: Project, name: str, **env: str) -> dict[str, tuple[str, str]]:
    checks = json.loads(shop.qd("doctor", "--json", seconds=60.0, **env).stdout)["checks"]
    return {each["what"]: (each["sign"], each["value"]) for each in checks if each["what"].startswith(f"{name}.")}


# --- databases


Found = dict[str, tuple[str, str]]


def found(qd: Run) -> Found:
    """Name of the check -> sign and value."""
    checks = json.loads(qd("doctor", "--json").stdout)["checks"]
    return {each["what"]: (each["sign"], each["value"]) for each in checks}


def use_database(configured: Callable[[str], None], url: str) -> None:
    configured(f'[connections.db]\nurl = "{url}"\n[qd]\ndefault = "db"\ncontrol = "db"\n')


@pytest.mark.parametrize("kind", ["sqlite", "postgres_url", "mariadb_url"])
def test_a_healthy_database(kind: str, configured: Callable[[str], None], qd: Run, request: pytest.FixtureRequest):
    use_database(configured, "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind))
    lacks = found(qd)
    assert lacks["db.tables"][0] == "fail"
    assert "qd_names" in lacks["db.tables"][1]
    assert "db.latency" not in lacks
    done(qd("migrate"))
    well = found(qd)
    assert well["db.tables"] == ("ok", "qd's tables and 'jobs' exist")
    assert well["db.answers"][0] == "ok"
    assert ("db.clock" in well) == (kind != "sqlite")
    assert "db.latency" in well
    # The servers of the tests run without fsync, for speed.
    assert well["db.persistence"][0] == {"sqlite": "ok"}.get(kind, "warn"), well["db.persistence"]


def test_an_unreachable_database(configured: Callable[[str], None], qd: Run) -> None:
    use_database(configured, "postgresql://shop:s3cretw0rd@127.0.0.1:9/db")
    result = qd("doctor")
    assert result.exit_code in (69, 78)  # 78: there is no app
    assert "fail  db.answers: the database at postgresql://shop@127.0.0.1:9/db " in result.stdout, result.stdout
    assert "s3cretw0rd" not in result.output


def test_tables_of_a_newer_version(configured: Callable[[str], None], qd: Run) -> None:
    use_database(configured, "sqlite:///jobs.sqlite")
    done(qd("migrate"))
    with closing(sqlite3.connect("jobs.sqlite")) as db:
        db.execute("UPDATE qd_schema SET version = 99")
        db.commit()
    assert found(qd)["db.tables"][0] == "fail"
    assert "update qd on this host" in found(qd)["db.tables"][1]


def test_an_error_of_postgresql_does_not_show_the_statement(
    postgres_url: str, configured: Callable[[str], None], qd: Run
) -> None:
    use_database(configured, postgres_url)
    result = qd("status")
    assert result.exit_code == 69
    assert result.stderr.endswith('run `qd migrate`: relation "qd_names" does not exist\n'), result.stderr


def test_a_database_that_is_read_only(postgres_url: str, configured: Callable[[str], None], qd: Run) -> None:
    use_database(configured, postgres_url)
    done(qd("migrate"))
    use_database(configured, f"{postgres_url}?options=-c%20default_transaction_read_only%3Don")
    output = qd("doctor").stdout
    assert "in a read-only transaction -> it is a replica, or a failover is under way: point the url at" in output, (
        output
    )
