"""qd status about the schedule."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run, document, done
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("still")


@pytest.mark.leaves("qd:schedule:paused")
def test_status_shows_paused_schedule_entries(qd: Run, clean_redis: Client) -> None:
    now = float(clean_redis.text("TIME")[0])
    assert document(qd("status", "--json"))["schedule"] == {"paused": {}}
    note = json.dumps({"by": "ana@app-1", "reason": "disk full", "at": now - 60})
    clean_redis.call("HSET", "qd:schedule:paused", "tidy", note)
    assert done(qd("status")).startswith(
        'the entry tidy of the schedule is paused by ana@app-1 1m ago: "disk full"; `qd '
    )
    clean_redis.call("HSET", "qd:schedule:paused", "*", note)
    assert "\nall entries of the schedule are paused by ana@app-1 1m ago" in done(qd("status"))
    paused = document(qd("status", "--json"))["schedule"]["paused"]
    assert (paused.keys(), paused["*"]["reason"]) == ({"*", "tidy"}, "disk full")
