"""`qd doctor` says what each connection cannot do, and looks for no server where there is none."""

from __future__ import annotations

import json

import pytest

from qd.bus.at_once import LIMITS as SYNC
from qd.connectors.base import Limits
from qd.connectors.failover import LIMITS as FAILOVER
from qd.connectors.null import LIMITS as NULL
from tests.support.project import MakeProject

EACH = [("sync", SYNC), ("null", NULL), ("failover", FAILOVER)]


@pytest.mark.parametrize(("driver", "limits"), EACH, ids=[row[0] for row in EACH])
def test_what_a_connection_cannot_do_is_listed(project: MakeProject, driver: str, limits: Limits) -> None:
    shop = project(jobs='@app.job("one")\ndef one() -> None: ...\n')
    more = 'connections = ["redis"]\n' if driver == "failover" else ""
    shop.config(f'[connections.x]\ndriver = "{driver}"\n{more}')
    checks = json.loads(shop.qd("doctor", "--json", QD_CONNECTION="x", QD_CONTROL="redis").stdout)["checks"]
    said = [each["value"] for each in checks if each["what"] == "x.cannot"]
    assert said == [f"{what}: {meaning}" for what, meaning in limits.items()]
    assert not [each for each in checks if each["what"].startswith("x.") and each["sign"] == "fail"]
