"""`qd doctor` lists what each connection cannot do, and checks only servers that the connection uses."""

from __future__ import annotations

import json

import pytest

from qd.dispatch.sync import LIMITS as SYNC
from qd.drivers.send_only import LIMITS as FAILOVER
from qd.drivers.send_only import NULL_LIMITS as NULL
from qd.drivers.types import Gaps
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
    said = [each["value"] for each in checks if each["what"] == "x.cannot"]
    assert said == [f"{what}: {meaning}" for what, meaning in limits.items()]
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
