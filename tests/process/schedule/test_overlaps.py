"""Entries without overlapping: a lease that lives as long as the run."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.redis import Client
from tests.support.schedule import Drive, last_reports, lease
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")

# -- without_overlapping

LONG = "[schedule]\nlease = 6\n"  # seconds; renewed after two of them
ALONE = """
add("long", lambda: time.sleep(300), alone=True)
add("quick", lambda: None, alone=True)
add("local", lambda: time.sleep(300), alone=True, every_host=True)
"""


def test_an_entry_without_overlapping_runs_once_and_again_as_soon_as_its_run_was_killed(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long")
    eventually(lambda: lease(redis, "long").get("pid") not in (None, work.pid), 20)
    held = lease(redis, "long")
    assert int(work.wait_line(r"started entry=long at=\S+ pid=(\d+)")[1]) == held["pid"]
    assert redis.call("PTTL", "qd:overlap:long") <= 6000
    second = driven.run("long")
    assert last_reports(second)["long"]["waits"].startswith(
        f"still running on {held['host']} (pid {held['pid']}) since "
    )
    eventually(lambda: redis.call("PTTL", "qd:overlap:long") < 5000, what="a second of it gone")
    eventually(lambda: redis.call("PTTL", "qd:overlap:long") > 5000, what="a renewal")
    assert lease(redis, "long") == held
    os.kill(held["pid"], signal.SIGKILL)
    work.ends_clean()
    assert not lease(redis, "long")
    assert last_reports(driven.run("quick"))["quick"]["error"] == ""
    assert not lease(redis, "quick")


def test_a_lease_ends_by_itself_when_its_scheduler_was_killed(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long", "local")
    host = eventually(lambda: lease(redis, "long").get("host"), 20)
    assert eventually(lambda: lease(redis, f"{host}\x1flocal"), 20)
    work.kill()
    left = redis.text("KEYS", "qd:overlap:*")
    assert all(0 < redis.call("PTTL", key) <= 6000 for key in left)
    eventually(lambda: not redis.text("KEYS", "qd:overlap:*"), 20)


def test_a_lease_that_was_cleared_is_told_and_the_run_goes_on(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long")
    eventually(lambda: lease(redis, "long").get("pid") not in (None, work.pid), 20)
    redis.call("DEL", "qd:overlap:long")
    work.wait_line('schedule.lease_lost entry=long reason="it was cleared by an operator"')
    assert not lease(redis, "long")
    assert work.process.poll() is None
    work.stop()
