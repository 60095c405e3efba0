"""qd status about the schedule."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run, document, done
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("still")


@pytest.mark.leaves("qd:schedule:paused")
def test_status_tells_what_of_the_schedule_is_paused(qd: Run, clean_redis: Client) -> None:
    now = float(clean_redis.text("TIME")[0])
    assert document(qd("status", "--json"))["schedule"] == {"paused": {}}
    note = json.dumps({"by": "ana@app-1", "reason": "disk full", "at": now - 60})
    clean_redis.call("HSET", "qd:schedule:paused", "tidy", note)
    assert done(qd("status")).startswith(
        'the entry tidy of the schedule is paused by ana@app-1 1m ago: "disk full"; `qd '
    )
    clean_redis.call("HSET", "qd:schedule:paused", "*", note)
    assert "\nall entries of the schedule are paused by ana@app-1 1m ago" in done(qd("status"))
    told = document(qd("status", "--json"))["schedule"]["paused"]
    assert (told.keys(), told["*"]["reason"]) == ({"*", "tidy"}, "disk full")
