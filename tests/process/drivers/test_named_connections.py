"""Connections by name under the real command: failover over real servers, and a driver of the app's own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

OWN = """
from qd import Qd, current_job
from qd.drivers.redis.queue import RedisQueue
import os, sys, time
from pathlib import Path
app = Qd()

class Shelf(RedisQueue):
    "Redis, under another word."

app.extend("shelf", lambda at, who: Shelf(at, who))
app.extend("sends", lambda at: Shelf(at))
"""
SENDS = """
import logging
from jobs import app, quick
import qd
logging.basicConfig(format="%(message)s")
app.on(qd.events.QueueFailedOver)(lambda event: print("over", event.connection))
for n in range(3):
    quick.dispatch(n)
"""


@pytest.fixture
def second() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def shop(project: MakeProject, second: Server) -> Project:
    found = project(jobs=JOBS)
    (found.root / "qd.toml").write_text(
        '[qd]\napp = "jobs:app"\ndefault = "safe"\n'
        f'[connections.first]\nurl = "{found.url}"\n[connections.second]\nurl = "{second.url}"\n'
        '[connections.safe]\ndriver = "failover"\nconnections = ["first", "second"]\n'
    )
    return found


def test_jobs_fail_over_to_the_next_server_and_run_there(shop: Project, second: Server, redis: Client) -> None:
    witness = Witness(shop)
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(text.replace(shop.url, "redis://127.0.0.1:1/0"))
    done = shop.python(SENDS)
    assert done.stdout.split() == ["over", "first"]
    assert done.stderr.count("jobs for 'safe' go to 'second': 'first' fails: ") == 1
    work = shop.work("-w", "1", "--stop-when-empty", "-c", "second", QD_CONTROL="second")
    work.ends_clean()
    assert len(witness.starting("quick")) == 3


def test_status_shows_what_it_can_where_one_part_is_away(shop: Project, second: Server) -> None:
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(text.replace(shop.url, "redis://127.0.0.1:1/0"))
    away = shop.quick("status")
    assert (away.exit_code, away.stdout) == (69, "")  # the first part is the control connection
    (shop.root / "qd.toml").write_text((shop.root / "qd.toml").read_text().replace("[qd]", '[qd]\ncontrol = "second"'))
    done = shop.quick("status", "--json")
    status = json.loads(done.stdout)
    assert (done.exit_code, [line["connection"] for line in status["queues"]]) == (69, ["second"])
    assert "connection refused" in status["away"]["first"]
    assert "the queues of connection first are unknown: Redis at 127.0.0.1:1/0" in done.stderr
    health = shop.quick("health")
    assert (health.exit_code, health.stdout) == (69, "")


def test_what_is_well_goes_to_the_first(shop: Project, redis: Client) -> None:
    assert shop.python(SENDS).stdout == ""
    assert redis.call("LLEN", "queues:default") == 3
    assert "3" in shop.qd("status").stdout
    redis.call("FLUSHALL")


def test_commands_look_at_the_parts_of_a_failover_and_steer_them(shop: Project, second: Server, redis: Client) -> None:
    with second.client() as other:
        assert shop.quick("pause", "default").exit_code == 0
        assert [client.call("EXISTS", "queues:default:paused") for client in (redis, other)] == [1, 1]
        assert shop.quick("resume", "default").stdout == "first:default: resumed\nsecond:default: resumed\n"
        assert [client.call("EXISTS", "queues:default:paused") for client in (redis, other)] == [0, 0]
        other.call("RPUSH", "queues:default", "{}")
        queues = json.loads(shop.quick("status", "--json").stdout)["queues"]
        assert [(line["connection"], line["ready"]) for line in queues] == [("first", 0), ("second", 1)]
    redis.call("RPUSH", "queues:default", "no json")
    shop.work("-w", "1", "--stop-when-empty", "-c", "first").ends_clean()
    failed = shop.quick("failed", "list", "--json")
    assert len(json.loads(failed.stdout)) == 1
    assert "using its first member, first; for another one give -c second" in failed.stderr
    redis.call("FLUSHALL")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_driver_of_the_apps_own_is_worked_on(project: MakeProject, redis: Client, workers: str) -> None:
    shop = project(jobs=OWN + JOBS + "app.schedule(quick.using(connection='own').bind(2), every=1)\n")
    shop.config(f'[connections.own]\ndriver = "shelf"\nurl = "{shop.url}"\n')
    witness = Witness(shop)
    shop.python("from jobs import quick\nquick.using(connection='own').dispatch(1)")
    assert redis.call("LLEN", "queues:default") == 1
    work = shop.work("-w", workers, "-c", "own")
    witness.wait("quick 1")
    if workers == "1":
        witness.wait("quick 2")  # by the scheduler, which runs only where workers run
    eventually(lambda: not redis.call("ZCARD", "queues:default:reserved"), what="the ack")
    work.stop()
    assert shop.qd("pause", "default", "-c", "own").returncode == 0
    assert redis.call("EXISTS", "queues:default:paused") == 1
    (line,) = json.loads(shop.qd("status", "-c", "own", "--json").stdout)["queues"]
    assert (line["connection"], bool(line["paused"])) == ("own", True)
    done = shop.qd("config", "check")
    assert "driver 'shelf' of connection 'own' is not one of qd's" in done.stderr
    assert done.returncode == 0
    redis.call("FLUSHALL")


def test_qd_work_refuses_a_driver_that_only_sends(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=OWN + JOBS)
    shop.config(f'[connections.own]\ndriver = "sends"\nurl = "{shop.url}"\n')
    done = shop.qd("work", "-w", "1", "-c", "own")
    assert done.returncode == 78
    assert "driver 'sends' of connection 'own' only sends: for workers" in done.stderr
